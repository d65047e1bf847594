// types.h — identifiers that must not be mixed up.
#pragma once
#include <cstdint>

namespace sparkinfer {

enum class TokenId : int32_t {};  // row of the embedding table
enum class SeqId : int32_t {};    // a live sequence of the engine
enum class PageId : int32_t {};   // a KV page of 64 tokens

constexpr int32_t raw(TokenId t) { return static_cast<int32_t>(t); }
constexpr int32_t raw(SeqId s) { return static_cast<int32_t>(s); }
constexpr int32_t raw(PageId p) { return static_cast<int32_t>(p); }

}  // namespace sparkinfer
