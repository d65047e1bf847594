// crypto.h — the little of cryptography that the server needs, from OpenSSL.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sparkinfer {

using Digest = std::array<uint8_t, 32>;
Digest digest_of(std::string_view bytes);
// In a time that does not depend on where they differ.
bool equal_in_constant_time(const Digest& a, const Digest& b);
// `bytes` random bytes that nobody can guess, as hexadecimal digits.
std::string random_hex(size_t bytes);

}  // namespace sparkinfer
