#pragma once
// What tests of all modules use: the message of an expected error, parts of a text, a temporary directory.

#include "temporary_directory.h"
#include "trireme/base/error.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace trireme {

/// The message of the action's exception; "" if there is none. One that is no `Thrown` passes and fails the test.
template <class Thrown, class Action>
std::string message_of(const Action& action) {
  try {
    (void)action();
  } catch (const Thrown& error) {
    return error.what();
  }
  return "";
}

/// The same of an Error that has this exit code.
template <class Action>
std::string message_of(ExitCode code, const Action& action) {
  return message_of<Error>([&] {
    try {
      (void)action();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
      throw;
    }
  });
}

/// The same where the test fails if there is no error.
template <class Action>
std::string failure(ExitCode code, const Action& action) {
  const std::string message = message_of(code, action);
  EXPECT_NE(message, "") << "nothing was refused";
  return message;
}

inline ::testing::AssertionResult contains(std::string_view text, std::string_view part) {
  const bool found = text.find(part) != std::string_view::npos;
  return ::testing::AssertionResult(found) << "'" << part << "' is " << (found ? "" : "not ") << "in: " << text;
}

/// Tests that each have a directory of their own.
class DirectoryTest : public ::testing::Test, protected TemporaryDirectory {};

}  // namespace trireme
