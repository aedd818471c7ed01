#pragma once
// MD5 (RFC 1321), with which MLPerf identifies its data files. Not for security.

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// 32 lower-case hexadecimal digits.
std::string md5_hex(std::string_view text);
std::string md5_hex_of_file(const std::filesystem::path& path);

/// MLPerf's hash of a directory: the files' MD5 digests in hexadecimal, sorted, concatenated, and MD5 of
/// that text.
std::string md5_of_digests(std::vector<std::string> hex_digests);

}  // namespace trireme
