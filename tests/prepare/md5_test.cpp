// RFC 1321's test suite, every length around the block boundaries in pieces, and the hash of directories.

#include "data/prepare/md5.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Md5, EqualsTheStandardsTestSuite) {
  EXPECT_EQ(md5_hex(""), "d41d8cd98f00b204e9800998ecf8427e");
  EXPECT_EQ(md5_hex("a"), "0cc175b9c0f1b6a831c399e269772661");
  EXPECT_EQ(md5_hex("abc"), "900150983cd24fb0d6963f7d28e17f72");
  EXPECT_EQ(md5_hex("message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
  EXPECT_EQ(md5_hex("abcdefghijklmnopqrstuvwxyz"), "c3fcd3d76192e4007dfb496cca67e13b");
  EXPECT_EQ(md5_hex("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"),
            "d174ab98d277d9f5a5611c2c9f419d9f");
  EXPECT_EQ(md5_hex("12345678901234567890123456789012345678901234567890123456789012345678901234567890"),
            "57edf4a22be3c955ac49da2e2107b67a");
}

TEST(Md5, PiecesGiveTheSameDigest) {
  const std::string text(200, 'x');
  for (size_t length = 50; length < 140; ++length)
    for (const size_t cut : {size_t{1}, length / 2, size_t{63}, size_t{64}}) {
      if (cut > length) continue;
      Md5 md5;
      md5.update(text.data(), cut);
      md5.update(text.data(), length - cut);
      EXPECT_EQ(md5.hex(), md5_hex(text.substr(0, length))) << length << " cut at " << cut;
    }
}

TEST(Md5, DirectoryHashDoesNotDependOnTheOrder) {
  const std::string a = md5_hex("a"), abc = md5_hex("abc");
  EXPECT_EQ(md5_of_digests({a, abc}), md5_hex(a + abc));  // 0c… sorts before 90…
  EXPECT_EQ(md5_of_digests({abc, a}), md5_hex(a + abc));
}

}  // namespace
}  // namespace trireme
