#include "server/crypto.h"

#include <fmt/core.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <vector>

#include "core/check.h"

namespace sparkinfer {

Digest digest_of(std::string_view bytes) {
    Digest digest;
    ::SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
    return digest;
}

bool equal_in_constant_time(const Digest& a, const Digest& b) {
    return ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string random_hex(size_t bytes) {
    std::vector<uint8_t> random(bytes);
    CHECK(::RAND_bytes(random.data(), int(bytes)) == 1, "no random bytes");
    std::string text;
    for (const uint8_t byte : random) text += fmt::format("{:02x}", byte);
    return text;
}

}  // namespace sparkinfer
