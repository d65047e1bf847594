// json_fields_test.cpp — the fields of a request's JSON.
#include "server/json_fields.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

Json json(std::string_view text) { return parse_json(text, "test").value(); }

template <class T>
void expect_refused(const ApiResult<T>& result, std::string_view param, std::string_view message) {
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().status, 400);
    EXPECT_EQ(result.error().param, param);
    EXPECT_EQ(result.error().message, message);
}

TEST(JsonFields, ValuesAndWhatIsMissing) {
    // Risk: a field that is null or missing is read as a value, or a value is not read as what it is.
    const Json body =
        json(R"({"s":"a","b":true,"i":3,"whole":3.0,"d":0.5,"null":null,"list":["x","y"],"o":{"k":1}})");
    const Fields f = Fields::of(body, "").value();
    EXPECT_EQ(f.string("s").value(), "a");
    EXPECT_EQ(f.boolean("b").value(), true);
    EXPECT_EQ(f.integer("i").value(), 3);
    EXPECT_EQ(f.integer("whole").value(), 3);
    EXPECT_EQ(f.number("d", {0, 1}).value(), 0.5);
    EXPECT_EQ(f.number("i", {0, 5}).value(), 3.0);
    EXPECT_EQ(f.strings("list").value(), (std::vector<std::string>{"x", "y"}));
    EXPECT_EQ(f.strings("s").value(), (std::vector<std::string>{"a"}));
    EXPECT_EQ(f.fields("o").value()->at("k"), "o.k");
    EXPECT_EQ(f.string("null").value(), std::nullopt);
    EXPECT_EQ(f.string("none").value(), std::nullopt);
    EXPECT_EQ(f.array("none").value(), nullptr);
    EXPECT_FALSE(f.fields("none").value().has_value());
}

TEST(JsonFields, ErrorsNameTheWholePath) {
    // Risk: a client with a hundred messages is not told which of them is wrong.
    const Json body =
        json(R"({"messages":[{"role":"user"},{"role":5}],"stop":["a",1],"t":999999,"n":-1,"f":1.5})");
    const Fields f = Fields::of(body, "").value();
    const JsonArray* messages = f.required_array("messages").value();
    const Fields second = Fields::element(*messages, "messages", 1).value();
    expect_refused(second.required_string("role"), "messages[1].role",
                   "messages[1].role is a number, expected a string");
    expect_refused(second.required_string("content"), "messages[1].content",
                   "messages[1].content is missing, expected a string");
    expect_refused(f.strings("stop"), "stop[1]", "stop[1] is a number, expected a string");
    expect_refused(f.strings("t"), "t", "t is a number, expected a string or an array of strings");
    expect_refused(f.number("t", {0, 2}), "t", "t is 999999, expected a number from 0 to 2");
    expect_refused(f.number("n", {0, 1, true}), "n", "n is -1, expected a number above 0 and up to 1");
    expect_refused(f.integer("n", {1, 128}), "n", "n is -1, expected an integer from 1 to 128");
    expect_refused(f.integer("n", {0}), "n", "n is -1, expected an integer of at least 0");
    expect_refused(f.integer("f"), "f", "f is 1.5, expected an integer");
    expect_refused(f.boolean("n"), "n", "n is a number, expected true or false");
    expect_refused(f.array("t"), "t", "t is a number, expected an array");
    expect_refused(f.required_fields("o"), "o", "o is missing, expected an object");
    expect_refused(Fields::of(json("[1]"), ""), "", "the body is an array, expected an object");
    EXPECT_EQ(f.unknown_value("role", "wizard", "\"user\" or \"tool\"").message,
              R"(role is "wizard", expected "user" or "tool")");
}

TEST(JsonFields, NumbersAtTheEdges) {
    // Risk: a number outside of what an integer can hold becomes another one.
    const Json body = json(R"({"big":1e300,"u":18446744073709551615,"i":9223372036854775807,"inf":1e999})");
    const Fields f = Fields::of(body, "").value();
    EXPECT_FALSE(f.integer("big").ok());
    EXPECT_FALSE(f.integer("u").ok());
    EXPECT_EQ(f.integer("i").value(), INT64_MAX);
    EXPECT_FALSE(f.number("inf", {0, 1e308}).ok());
    EXPECT_EQ(f.number("u", {0, 1e300}).value(), 18446744073709551615.0);
}

}  // namespace
}  // namespace sparkinfer
