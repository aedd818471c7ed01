# Which commit this is, for --version and the names of packages. `cmake -DPROJECT_SOURCE_DIR=… -DPROJECT_VERSION=… -P` prints
# the package's version.
#
#   TRIREME_COMMIT            0123456789ab, with -dirty where files are changed; unknown outside of git
#   TRIREME_COMMIT_LOG        file that changes with the commit, also in a worktree; empty outside of git
#   TRIREME_PACKAGE_VERSION   0.1.0+git20261123.201500.1234.g0123456789ab; 0.1.0 outside of git

set(TRIREME_COMMIT "unknown")
set(TRIREME_COMMIT_LOG "")
set(TRIREME_PACKAGE_VERSION "${PROJECT_VERSION}")
find_package(Git QUIET)
if(Git_FOUND AND EXISTS ${PROJECT_SOURCE_DIR}/.git)
  function(trireme_git variable)
    execute_process(COMMAND ${CMAKE_COMMAND} -E env TZ=UTC ${GIT_EXECUTABLE} ${ARGN} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      OUTPUT_VARIABLE said OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(${variable} "${said}" PARENT_SCOPE)
  endfunction()
  trireme_git(commit describe --always --dirty --abbrev=12 --exclude=*)
  # Package managers install only what sorts after the installed version. A commit sorts after all its ancestors: the
  # latest time among them does not decrease, also where a clock went back, and their number tells commits of one second
  # apart. In a shallow clone the time alone decides.
  trireme_git(times log --date=format-local:%Y%m%d.%H%M%S --format=%cd)
  trireme_git(count rev-list --count HEAD)
  if(commit)
    set(TRIREME_COMMIT "${commit}")
    trireme_git(TRIREME_COMMIT_LOG rev-parse --git-path logs/HEAD)
    if(TRIREME_COMMIT_LOG)
      cmake_path(ABSOLUTE_PATH TRIREME_COMMIT_LOG BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    endif()
    string(REPLACE "\n" ";" times "${times}")
    list(SORT times)
    list(POP_BACK times latest)
    string(REPLACE "-" "." suffix "${commit}")
    set(TRIREME_PACKAGE_VERSION "${PROJECT_VERSION}+git${latest}.${count}.g${suffix}")
  endif()
endif()
if(CMAKE_SCRIPT_MODE_FILE)
  message(STATUS "package version: ${TRIREME_PACKAGE_VERSION}")
endif()
