// json_test.cpp — Risk: a hostile text crashes or throws; an error does not say where; a written text does
// not read back the same.
#include "core/json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace sparkinfer {
namespace {

void expect_refused(std::string_view text, const std::vector<std::string>& words, JsonLimits limits = {}) {
    const Result<Json> r = parse_json(text, "config.json", limits);
    ASSERT_FALSE(r.ok()) << text;
    EXPECT_EQ(r.error().kind, ErrorKind::bad_input);
    EXPECT_EQ(r.error().message.rfind("config.json: ", 0), 0u) << r.error().message;
    for (const std::string& word : words)
        EXPECT_NE(r.error().message.find(word), std::string::npos)
            << r.error().message << "\nlacks: " << word;
}

TEST(Json, ErrorsGiveTheByte) {
    expect_refused("", {"not JSON", "byte 0"});
    expect_refused("{\"a\": 1,}", {"not JSON", "byte 8"});
    expect_refused("{\"a\": 1} x", {"extra data", "byte 9"});
    expect_refused("{\"a\": nan}", {"byte"});
    expect_refused("\"\xff\"", {"byte"});
    expect_refused("\"\\ud800\"", {"byte"});
    expect_refused("[1, 2", {"incomplete", "byte 5"});
    expect_refused(std::string(65, '[') + std::string(65, ']'), {"too deep", "byte 64"});
    EXPECT_TRUE(parse_json(std::string(64, '[') + std::string(64, ']'), "x").ok());
}

TEST(Json, DuplicateKeys) {
    const std::string text = R"({"a": 1, "b": {"a": 2}, "a": 3})";
    const Json last = parse_json(text, "x").value();
    EXPECT_EQ(json_int(last.get_object(), "a", "x").value(), 3);
    expect_refused(text, {"'a' occurs twice", "byte"}, {.refuse_duplicate_keys = true});
    expect_refused(R"({"b": [{"k": 1, "k": 1}]})", {"'k' occurs twice"}, {.refuse_duplicate_keys = true});
    expect_refused(R"({"a\u0062": 1, "ab": 1})", {"'ab' occurs twice"}, {.refuse_duplicate_keys = true});
    EXPECT_TRUE(parse_json(R"([{"k": 1}, {"k": {"k": 2}}])", "x", {.refuse_duplicate_keys = true}).ok());
}

TEST(Json, LookupsSayWhatWasFound) {
    const Json v =
        parse_json(R"({"s": "text", "i": -5, "u": 18446744073709551615, "d": 2.5, "o": {}})", "f").value();
    const JsonObject& o = v.get_object();
    EXPECT_EQ(json_string(o, "s", "f").value(), "text");
    EXPECT_EQ(json_int(o, "i", "f").value(), -5);
    EXPECT_EQ(json_number(o, "d", "f").value(), 2.5);
    EXPECT_EQ(json_number(o, "i", "f").value(), -5.0);
    EXPECT_EQ(json_int(o, "none", "f").error().message, "f: the key 'none' is missing");
    EXPECT_EQ(json_int(o, "s", "f").error().message, "f: 's' is a string, expected an integer");
    EXPECT_EQ(json_string(o, "o", "f").error().message, "f: 'o' is an object, expected a string");
    EXPECT_FALSE(json_int(o, "d", "f").ok());
    EXPECT_FALSE(json_int(o, "u", "f").ok());
    EXPECT_EQ(json_object(*json_find(o, "d"), "f", "'d'").error().message,
              "f: 'd' is a number, expected an object");
    EXPECT_EQ(json_find(o, "none"), nullptr);
}

TEST(Json, WritesWhatItRead) {
    const std::string text =
        "{\"z\":[1,-2,18446744073709551615,0.1,1e-07,true,null],\"a\":{\"\":\"\\\"\\\\\\n\\u0001\xc3\xa9\"},"
        "\"e\":[],\"o\":{}}";
    EXPECT_EQ(to_json(parse_json(text, "x").value()), text);
    EXPECT_EQ(json_quote("a\xff"
                         "b\xe2\x82"),
              "\"a\xef\xbf\xbd"
              "b\xef\xbf\xbd\xef\xbf\xbd\"");
    EXPECT_EQ(json_quote(std::string_view("\0\x7f", 2)), "\"\\u0000\\u007f\"");
    EXPECT_EQ(to_json(Json(std::nan(""))), "null");
    EXPECT_EQ(to_json(Json(-std::numeric_limits<double>::infinity())), "null");
    EXPECT_EQ(to_json(Json(-0.0)), "-0.0");  // "-0" would be read as the integer 0
    EXPECT_EQ(to_json_pretty(parse_json(R"({"a":[1,{}],"b":[]})", "x").value()),
              "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

TEST(Json, DoublesReadBackTheSame) {
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; i++) {
        const uint64_t bits = random();
        double d = 0;
        std::memcpy(&d, &bits, 8);
        if (!std::isfinite(d)) continue;
        const std::string text = to_json(Json(d));
        ASSERT_EQ(std::strtod(text.c_str(), nullptr), d) << text;
        const Result<Json> back = parse_json(text, "x");
        ASSERT_TRUE(back.ok()) << text;
        ASSERT_EQ(back.value().to_number<double>(), d) << text;
    }
}

TEST(Json, Utf8) {
    for (const char* good :
         {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
        EXPECT_TRUE(is_utf8(good)) << good;
    for (const char* bad :
         {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
          "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "a\xc3", "\xc3("})
        EXPECT_FALSE(is_utf8(bad));
}

// Random damage: a Result, whatever comes.
TEST(Json, RandomDamage) {
    const std::string text =
        R"({"a": [1, 2.5e3, "x\u00e9y", {"b": null, "c": [true, false]}], "d": "\\\"", "e": -0})";
    std::mt19937 random(9);
    int accepted = 0;
    for (int i = 0; i < 5000; i++) {
        std::string damaged = text;
        for (int k = 0; k <= i % 3; k++) damaged[random() % damaged.size()] = char(random());
        if (random() % 3 == 0) damaged.resize(random() % damaged.size());
        const Result<Json> r = parse_json(damaged, "x", {.depth = 64, .refuse_duplicate_keys = i % 2 == 0});
        accepted += r.ok();
        if (!r.ok()) continue;
        ASSERT_TRUE(parse_json(to_json(r.value()), "x").ok()) << damaged;
    }
    EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace sparkinfer
