#include "server/keys.h"

#include <sys/stat.h>

#include <algorithm>

#include "core/file.h"
#include "core/log.h"
#include "server/http_head.h"

namespace sparkinfer {

namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxKeys = 4096, kMinKeyBytes = 8, kMaxKeyBytes = 512;
constexpr std::string_view kHashed = "sha256:";

std::optional<Digest> parse_hash(std::string_view digits) {
    Digest hash{};
    if (digits.size() != 2 * hash.size()) return std::nullopt;
    for (size_t i = 0; i < digits.size(); ++i) {
        const char c = digits[i];
        const int value = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (value < 0) return std::nullopt;
        hash[i / 2] = uint8_t(hash[i / 2] * 16 + value);
    }
    return hash;
}

Result<Digest> parse_line(std::string_view line, const std::string& where) {
    if (line.substr(0, kHashed.size()) == kHashed) {
        if (const auto hash = parse_hash(line.substr(kHashed.size()))) return *hash;
        return bad_input("{}: what follows 'sha256:' is not 64 hexadecimal digits", where);
    }
    const auto visible = [](char c) { return uint8_t(c) > 0x20 && uint8_t(c) < 0x7f; };
    if (!std::all_of(line.begin(), line.end(), visible))
        return bad_input("{}: the key has a space or another character that no header carries", where);
    if (line.size() < kMinKeyBytes || line.size() > kMaxKeyBytes)
        return bad_input("{}: the key has {} characters, expected {} to {}", where, line.size(), kMinKeyBytes,
                         kMaxKeyBytes);
    return digest_of(line);
}

}  // namespace

Result<KeyRing> KeyRing::parse(std::string_view text, const std::string& source) {
    KeyRing ring;
    for (int number = 1; !text.empty(); ++number) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
        line = trimmed(line);
        if (line.empty() || line[0] == '#') continue;
        TRY(const Digest hash, parse_line(line, fmt::format("{}, line {}", source, number)));
        ring.keys_.push_back({hash, ++ring.last_number_});
        if (ring.size() > kMaxKeys) return bad_input("{}: more than {} keys", source, kMaxKeys);
    }
    if (ring.keys_.empty()) return bad_input("{}: the file holds no key, expected one a line", source);
    return ring;
}

Result<KeyRing> KeyRing::load(const std::string& path) {
    TRY(const std::string text, read_text_file(path, kMaxFileBytes));
    TRY(KeyRing ring, parse(text, path));
    struct stat facts{};
    if (::stat(path.c_str(), &facts) == 0 && (facts.st_mode & (S_IRGRP | S_IROTH)) &&
        text.find(kHashed) == std::string::npos)
        log_warning("{}: others may read this file of keys; chmod 600 keeps them out", path);
    return ring;
}

std::optional<std::string> KeyRing::find(std::string_view shown) const {
    const Digest hash = digest_of(shown);
    size_t found = 0;
    for (const Key& key : keys_)
        if (equal_in_constant_time(hash, key.hash)) found = key.number;
    if (found == 0) return std::nullopt;
    return fmt::format("key-{}", found);
}

void KeyRing::keep_labels(const KeyRing& before) {
    last_number_ = before.last_number_;
    for (Key& key : keys_) {
        const auto known = std::find_if(before.keys_.begin(), before.keys_.end(),
                                        [&](const Key& old) { return old.hash == key.hash; });
        key.number = known != before.keys_.end() ? known->number : ++last_number_;
    }
}

}  // namespace sparkinfer
