// RFC 1321's test suite, lengths around the block boundaries, and the hash of directories.

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

TEST(Md5, LengthsAroundTheBlocks) {
  const std::pair<size_t, const char*> digests[] = {
      {55, "04364420e25c512fd958a70738aa8f72"},  {56, "668a72d5ba17f08e62dabcafad6db14b"},
      {57, "693037871c4a9d3d8685018905cb530a"},  {63, "7dc2ca208106a2f703567bdff99d8981"},
      {64, "c1bb4f81d892b2d57947682aeb252456"},  {65, "1bc932052302d074bdec39795fe00cf6"},
      {119, "ab347a5f68c8a443cfcddc633f12c24f"}, {120, "fb98667f98096de92620b64f46e1c5b5"},
      {128, "d69cb61a6ee87200676eb0d4b90edbcb"},
  };
  for (const auto& [length, digest] : digests) EXPECT_EQ(md5_hex(std::string(length, 'x')), digest) << length;
}

TEST(Md5, DirectoryHashDoesNotDependOnTheOrder) {
  const std::string a = md5_hex("a"), abc = md5_hex("abc");
  EXPECT_EQ(md5_of_digests({a, abc}), md5_hex(a + abc));  // 0c… sorts before 90…
  EXPECT_EQ(md5_of_digests({abc, a}), md5_hex(a + abc));
}

}  // namespace
}  // namespace trireme
