#include "server/responses_store.h"

#include <gtest/gtest.h>

namespace sparkinfer {
namespace {

StoredResponse stored(const std::string& id, size_t bytes = 10, const std::string& key = "") {
    return {id, key, {{"id", id}}, {{.role = Role::user, .content = std::string(bytes, 'x')}}};
}

// Risk: answers pile up until memory is gone, or the one that a client goes on from is thrown away first.
TEST(ResponsesStore, DropsWhatWasUsedLongestAgo) {
    ResponsesStore store({.count = 3, .bytes = 1 << 20});
    for (const char* id : {"resp_a", "resp_b", "resp_c"}) store.put(stored(id));
    EXPECT_NE(store.find("resp_a", ""), nullptr);
    store.put(stored("resp_d"));
    EXPECT_NE(store.find("resp_a", ""), nullptr);
    EXPECT_EQ(store.find("resp_b", ""), nullptr);

    ResponsesStore small({.count = 1000, .bytes = 50000});
    for (int i = 0; i < 100; ++i) {
        small.put(stored("resp_" + std::to_string(i), 9000));
        EXPECT_LE(small.bytes(), 50000u);
    }
    EXPECT_NE(small.find("resp_99", ""), nullptr);
    EXPECT_EQ(small.find("resp_90", ""), nullptr);
    small.put(stored("resp_huge", 60000));
    EXPECT_EQ(small.find("resp_huge", ""), nullptr);
    EXPECT_NE(small.find("resp_99", ""), nullptr) << "what cannot be kept throws nothing out";
}

// Risk: bytes are counted twice or never given back, and the store is full of nothing.
TEST(ResponsesStore, CountsWhatItHolds) {
    ResponsesStore store({.count = 10, .bytes = 1 << 20});
    store.put(stored("resp_a", 1000));
    const size_t one = store.bytes();
    EXPECT_GT(one, 1000u);
    store.put(stored("resp_a", 1000));
    EXPECT_EQ(store.bytes(), one);
    EXPECT_TRUE(store.erase("resp_a", ""));
    EXPECT_FALSE(store.erase("resp_a", ""));
    EXPECT_EQ(store.bytes(), 0u);
}

// Risk: one user reads or deletes what another one said.
TEST(ResponsesStore, OthersSeeNothing) {
    ResponsesStore store({.count = 10, .bytes = 1 << 20});
    store.put(stored("resp_a", 10, "key-1"));
    EXPECT_EQ(store.find("resp_a", "key-2"), nullptr);
    EXPECT_EQ(store.find("resp_a", ""), nullptr);
    EXPECT_FALSE(store.erase("resp_a", "key-2"));
    EXPECT_NE(store.find("resp_a", "key-1"), nullptr);
}

// Risk: an item that is referred to is another one's.
TEST(ResponsesStore, FindsItemsByTheirIds) {
    ResponsesStore store({.count = 10, .bytes = 1 << 20});
    StoredResponse response = stored("resp_a");
    response.response["output"] =
        JsonArray{JsonObject{{"id", "rs_a_0"}}, JsonObject{{"id", "msg_a_1"}, {"x", 1}}};
    store.put(response);
    ASSERT_TRUE(store.item("msg_a_1", ""));
    EXPECT_EQ(store.item("msg_a_1", "")->at("x"), Json(1));
    for (const char* id : {"msg_a_0", "msg_b_1", "msg_a", "a", "", "_", "__"})
        EXPECT_FALSE(store.item(id, "")) << id;
}

}  // namespace
}  // namespace sparkinfer
