#include "cli/sha256.h"

#include <gtest/gtest.h>

#include <fstream>

namespace sparkinfer {
namespace {

std::string sha256(const std::string& text, size_t piece) {
    Sha256 hash;
    for (size_t at = 0; at < text.size(); at += piece)
        hash.update(std::as_bytes(std::span(text)).subspan(at, std::min(piece, text.size() - at)));
    return hash.finish();
}

// Risk: a digest that no other program agrees with. Values: FIPS 180-4's examples and NIST's long message,
// and Python's hashlib for the lengths around a block's end.
TEST(Sha256, AgreesWithOthers) {
    const std::pair<std::string, const char*> known[] = {
        {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
        {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
        {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
         "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
        {std::string(1'000'000, 'a'), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"},
        {std::string(55, 'x'), "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072"},
        {std::string(56, 'x'), "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e"},
        {std::string(63, 'x'), "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2"},
        {std::string(64, 'x'), "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c"},
        {std::string(119, 'x'), "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c"},
        {std::string(120, 'x'), "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98"},
    };
    for (const auto& [text, digest] : known)
        for (const size_t piece : {1, 7, 64, 1000})
            EXPECT_EQ(sha256(text, piece), digest) << text.size() << " by " << piece;
}

// Risk: files are read short, or in another order than given.
TEST(Sha256, FilesAreReadOneAfterTheOther) {
    const std::string folder = testing::TempDir();
    const std::string a(5'000'000, 'a'), b = "b";
    std::ofstream(folder + "sha_a") << a;
    std::ofstream(folder + "sha_b") << b;
    uint64_t read = 0;
    const auto hear = [&](uint64_t done) {
        read = done;
        return true;
    };
    const auto both = sha256_of_files({folder + "sha_a", folder + "sha_b"}, hear);
    ASSERT_TRUE(both.ok()) << both.error().message;
    EXPECT_EQ(both.value(), sha256(a + b, 1 << 20));
    EXPECT_EQ(read, a.size() + b.size());
    EXPECT_EQ(sha256_of_files({folder + "sha_none"}, {}).error().kind, ErrorKind::bad_input);
}

}  // namespace
}  // namespace sparkinfer
