# Build type, warnings, sanitizers, ccache, and detection of CUDA.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

# The time-critical arithmetic is in libraries and kernels: for host code -O3 only makes compilation slower.
string(REPLACE "-O3" "-O2" CMAKE_CXX_FLAGS_RELEASE "${CMAKE_CXX_FLAGS_RELEASE}")

find_program(TRIREME_CCACHE ccache)
if(TRIREME_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without these two settings ccache does not cache files that use the precompiled header.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_SLOPPINESS=pch_defines,time_macros ${TRIREME_CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()

set(TRIREME_WITH_CUDA OFF)
if(NOT TRIREME_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  # AUTO: the GPUs that nvidia-smi shows, as far as kernels serve them, and Hopper.
  if(TRIREME_CUDA_ARCHITECTURES STREQUAL "AUTO")
    set(shown "")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE shown ERROR_QUIET RESULT_VARIABLE status)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" shown "${shown}")
    list(TRANSFORM shown REPLACE "\\." "")
    list(FILTER shown EXCLUDE REGEX "^([1-7][0-9]|90)$")
    list(REMOVE_DUPLICATES shown)
    set(TRIREME_CUDA_ARCHITECTURES ${shown} 90a)
  endif()
  # src/ops/dispatch.cpp reads this list when a program runs, so words that CMake itself would replace are no part of it.
  # PTX for 90a runs where the image for sm_90a does, and of 90 and 90a CUDA would take either.
  foreach(architecture IN LISTS TRIREME_CUDA_ARCHITECTURES)
    if(NOT architecture MATCHES "^([89]|1[0-9])[0-9](a|f)?(-real|-virtual)?$" OR architecture STREQUAL "90a-virtual")
      message(FATAL_ERROR "TRIREME_CUDA_ARCHITECTURES has '${architecture}': use AUTO, or a list of 80, 86, 89, 90a, 100, "
        "120 and other compute capabilities from 8.0 on (for 9.0: 90a), each alone or with -real or -virtual")
    endif()
  endforeach()
  if("${TRIREME_CUDA_ARCHITECTURES}" MATCHES "(^|;)90(-real)?(;|$)" AND "${TRIREME_CUDA_ARCHITECTURES}" MATCHES "90a")
    message(FATAL_ERROR "TRIREME_CUDA_ARCHITECTURES has 90 and 90a, which are for the same GPUs: leave 90 out")
  endif()
  if(NOT CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES ${TRIREME_CUDA_ARCHITECTURES})
  endif()
  if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
    find_program(nvcc_path nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
    if(nvcc_path)
      set(CMAKE_CUDA_COMPILER ${nvcc_path})
    endif()
  endif()
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(TRIREME_WITH_CUDA ON)
  elseif(TRIREME_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TRIREME_CUDA=ON but no nvcc was found: put it on PATH or set CUDA_HOME")
  endif()
endif()

add_library(trireme_options INTERFACE)
target_compile_options(trireme_options INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;-Werror=all-warnings>)
# Stack traces in the log need the names of our functions. Only those are exported: with -rdynamic, symbols of static
# libraries would replace those inside LibTorch.
target_link_options(trireme_options INTERFACE "LINKER:--export-dynamic-symbol=_ZN7trireme*" "LINKER:--export-dynamic-symbol=_ZNK7trireme*")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 14)
  # g++ 12 and 13 give false warnings for copies inside std::string and std::vector (GCC bugs 105651, 105329).
  target_compile_options(trireme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-stringop-overflow;-Wno-array-bounds>)
  # g++ 13 takes a reference that a function returns for one to that function's temporary argument (GCC bug 107532).
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(trireme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-dangling-reference>)
  endif()
  # Warnings are errors where a compiler's warnings are known. Sanitizers' code brings warnings of its own.
  if(NOT TRIREME_SANITIZE)
    target_compile_options(trireme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endif()
if(TRIREME_WITH_CUDA)
  message(STATUS "Kernels: with CUDA for ${TRIREME_CUDA_ARCHITECTURES}")
  target_compile_definitions(trireme_options INTERFACE TRIREME_WITH_CUDA=1)
else()
  message(STATUS "Kernels: CPU only")
endif()
if(TRIREME_SANITIZE)
  target_compile_options(trireme_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TRIREME_SANITIZE};-fno-omit-frame-pointer>)
  target_link_options(trireme_options INTERFACE -fsanitize=${TRIREME_SANITIZE})
  if(TRIREME_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The thread sanitizer does not support fences; g++ warns wherever <atomic> uses one.
    target_compile_options(trireme_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-tsan>)
  endif()
endif()
