// utf8.h — is a name in a file proper UTF-8? (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF.)
#pragma once
#include <cstdint>
#include <string_view>

namespace sparkinfer {

inline bool is_utf8(std::string_view text) {
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    const size_t n = text.size();
    for (size_t i = 0; i < n;) {
        const uint8_t lead = p[i];
        if (lead < 0x80) {
            i++;
            continue;
        }
        const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
        if (lead < 0xc2 || lead > 0xf4 || n - i < length) return false;
        for (size_t k = 1; k < length; k++)
            if ((p[i + k] & 0xc0) != 0x80) return false;
        const uint8_t second = p[i + 1];
        const bool bad = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                         (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
        if (bad) return false;
        i += length;
    }
    return true;
}

}  // namespace sparkinfer
