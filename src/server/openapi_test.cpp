// openapi_test.cpp — the description of the endpoints against the routes and the parsers.
#include "server/openapi.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "server/endpoints.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/routes.h"
#include "server/test_service.h"

namespace sparkinfer {
namespace {

TEST(Openapi, DescribesEveryRoute) {
    // Risk: an endpoint is not described, or one is that does not exist.
    FakeService service;
    const Json document = openapi_document();
    const JsonObject& paths = document.at("paths").as_object();
    std::set<std::string> described, routed;
    for (const auto& [path, methods] : paths)
        for (const auto& [method, operation] : methods.as_object())
            described.insert(std::string(method) + " " + std::string(path));
    for (const Route& route : api_routes(service, {})) {
        std::string method = route.method;
        for (char& c : method) c = char(std::tolower(uint8_t(c)));
        routed.insert(method + " " + route.path);
        const Json* methods = json_find(paths, route.path);
        ASSERT_TRUE(methods && json_find(methods->as_object(), method)) << method << " " << route.path;
        EXPECT_EQ(methods->at(method).at("security").as_array().empty(), route.access == Route::Access::open)
            << route.path;
    }
    for (const std::string& operation : described) {
        bool elsewhere = operation == "get /";
        for (const char* path : {"/metrics", "/health", "/dashboard"})
            elsewhere = elsewhere || operation.find(path) != std::string::npos;
        EXPECT_TRUE(elsewhere || routed.count(operation)) << operation;
    }
}

TEST(Openapi, ReferencesLeadSomewhere) {
    // Risk: tools that read the description stop at a name that is not there.
    const Json document = openapi_document();
    const JsonObject& schemas = document.at("components").at("schemas").as_object();
    std::function<void(const Json&)> walk = [&](const Json& value) {
        if (const JsonArray* array = value.if_array())
            for (const Json& item : *array) walk(item);
        const JsonObject* object = value.if_object();
        if (!object) return;
        for (const auto& [key, item] : *object) {
            if (key == "$ref") {
                const std::string name(item.as_string());
                EXPECT_NE(json_find(schemas, name.substr(name.rfind('/') + 1)), nullptr) << name;
            }
            walk(item);
        }
    };
    walk(document);
}

// The type of a field that may also be null; null: it is no plain one.
const JsonObject* plain_type(const Json& schema) {
    const JsonObject* object = schema.if_object();
    if (const Json* options = object ? json_find(*object, "anyOf") : nullptr)
        object = options->as_array().at(0).if_object();
    return object && json_find(*object, "type") ? object : nullptr;
}

// Sends one field of a request to its parser.
using Accepts = std::function<bool(std::string_view field, const Json& value)>;

void expect_limits(const JsonObject& schema, const Accepts& accepts) {
    size_t checked = 0;
    for (const auto& [key, value] : schema.at("properties").as_object()) {
        const std::string_view field(key.data(), key.size());
        const JsonObject* plain = plain_type(value);
        if (!plain || field == "prompt") continue;
        const std::string type(plain->at("type").as_string());
        const Json wrong = type == "string" ? Json(5) : Json(JsonArray{JsonArray{}});
        const Json* high = json_find(*plain, "maximum");
        const Json* low = json_find(*plain, "minimum");
        const Json* above = json_find(*plain, "exclusiveMinimum");
        const auto expect = [&](bool accepted, const Json& sent) {
            EXPECT_EQ(accepts(field, sent), accepted) << field << ": " << to_json(sent);
        };
        expect(false, wrong);
        if (type == "boolean") expect(true, false);
        if (!high) continue;
        expect(true, *high);
        if (low) expect(true, *low);
        if (above) expect(false, *above);
        if (field == "seed") continue;  // any integer: the limit is for what makes requests from it
        expect(false, high->to_number<double>() + 1);
        if (low) expect(false, low->to_number<double>() - 1);
        checked++;
    }
    EXPECT_GT(checked, 10u);
}

TEST(Openapi, LimitsAreTheParsers) {
    // Risk: a client that keeps to the description is refused, or one that breaks it is not.
    const JsonObject schemas = openapi_schemas();
    const Accepts chat = [](std::string_view field, const Json& value) {
        JsonObject request{{"messages", JsonArray{JsonObject{{"role", "user"}, {"content", "hi"}}}}};
        if (field == "top_logprobs") request["logprobs"] = true;
        if (field == "min_tokens") request["max_tokens"] = INT32_MAX;
        request[field] = value;
        return parse_chat(request).ok();
    };
    expect_limits(schemas.at("ChatRequest").as_object(), chat);
    const Accepts completion = [](std::string_view field, const Json& value) {
        JsonObject request{{"prompt", "a"}, {field, value}};
        if (field == "min_tokens") request["max_tokens"] = INT32_MAX;
        return parse_completion(request).ok();
    };
    expect_limits(schemas.at("CompletionRequest").as_object(), completion);
}

}  // namespace
}  // namespace sparkinfer
