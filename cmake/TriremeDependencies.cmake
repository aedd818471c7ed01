# External libraries. LibTorch is found through a Python with the torch wheel (or Torch_DIR) and linked by file name:
# its own CMake package requires a CUDA toolkit if the wheel was built with CUDA, and a CPU-only build has none.

set(TRIREME_PYTHON "" CACHE FILEPATH "Python with torch 2.11 (default: .venv of the project, else python3 on PATH)")
set(candidates ${TRIREME_PYTHON} ${PROJECT_SOURCE_DIR}/.venv/bin/python)
find_program(system_python NAMES python3)
list(APPEND candidates ${system_python})
set(TRIREME_PYTHON_EXECUTABLE "")
set(torch_root "")
if(DEFINED ENV{Torch_DIR} AND NOT Torch_DIR)
  set(Torch_DIR $ENV{Torch_DIR})
endif()
foreach(python ${candidates})
  if(EXISTS ${python})
    execute_process(
      COMMAND ${python} -c "import importlib.util as u,os;print(os.path.dirname(u.find_spec('torch').origin))"
      OUTPUT_VARIABLE found OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(TRIREME_PYTHON_EXECUTABLE ${python})
      set(torch_root ${found})
      break()
    endif()
  endif()
endforeach()
if(Torch_DIR)
  get_filename_component(torch_root ${Torch_DIR}/../../.. ABSOLUTE)
endif()
if(NOT torch_root OR NOT EXISTS ${torch_root}/lib/libtorch_cpu.so)
  message(FATAL_ERROR "LibTorch not found: run scripts/setup.sh, or point TRIREME_PYTHON at a Python with torch 2.11, "
    "or set Torch_DIR to LibTorch's share/cmake/Torch")
endif()
file(STRINGS ${torch_root}/include/torch/headeronly/version.h version_lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
string(REGEX REPLACE ".*MAJOR ([0-9]+).*MINOR ([0-9]+).*" "\\1.\\2" TRIREME_TORCH_VERSION "${version_lines}")
if(TRIREME_TORCH_VERSION VERSION_LESS 2.11)
  message(FATAL_ERROR "LibTorch ${TRIREME_TORCH_VERSION} at ${torch_root}: Trireme needs 2.11 or later")
endif()
get_filename_component(site_packages ${torch_root}/.. ABSOLUTE)
message(STATUS "LibTorch ${TRIREME_TORCH_VERSION}: ${torch_root}")

find_package(Threads REQUIRED)
add_library(trireme_libtorch INTERFACE)
add_library(trireme::libtorch ALIAS trireme_libtorch)
target_include_directories(trireme_libtorch SYSTEM INTERFACE
  ${torch_root}/include ${torch_root}/include/torch/csrc/api/include)
target_link_libraries(trireme_libtorch INTERFACE
  ${torch_root}/lib/libtorch_cpu.so ${torch_root}/lib/libc10.so Threads::Threads)
# Libraries linked by path are on the build's search path; CMake replaces it at installation (TriremeInstall.cmake). DT_RPATH
# instead of DT_RUNPATH: it also serves the libraries that these libraries need.
target_link_options(trireme_libtorch INTERFACE -Wl,--disable-new-dtags)

if(TRIREME_WITH_CUDA)
  if(NOT EXISTS ${torch_root}/lib/libtorch_cuda.so)
    message(FATAL_ERROR "nvcc is here but LibTorch at ${torch_root} has no CUDA: install the CUDA wheel or set TRIREME_CUDA=OFF")
  endif()
  target_link_libraries(trireme_libtorch INTERFACE ${torch_root}/lib/libc10_cuda.so CUDA::cudart)
  # For programs that compute on a GPU. libtorch_cuda, which needs NCCL, is not linked: src/base/cuda_libraries.cpp loads it
  # where there is a driver. -u brings that file into the program.
  add_library(trireme_cuda_operators INTERFACE)
  add_library(trireme::cuda_operators ALIAS trireme_cuda_operators)
  target_link_options(trireme_cuda_operators INTERFACE -Wl,-u,trireme_loads_cuda_libraries)
  target_link_libraries(trireme_cuda_operators INTERFACE trireme_base)
  find_path(TRIREME_NCCL_INCLUDE nccl.h HINTS ${site_packages}/nvidia/nccl/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  # The same copy as LibTorch loads: two copies of NCCL in one process do not work together.
  find_library(TRIREME_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ${site_packages}/nvidia/nccl/lib REQUIRED)
  add_library(trireme_nccl INTERFACE)
  add_library(trireme::nccl ALIAS trireme_nccl)
  target_include_directories(trireme_nccl SYSTEM INTERFACE ${TRIREME_NCCL_INCLUDE})
  target_link_libraries(trireme_nccl INTERFACE ${TRIREME_NCCL_LIBRARY})
  find_path(TRIREME_CUBLASLT_INCLUDE cublasLt.h HINTS ${site_packages}/nvidia/cu13/include ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  # Only its header is used; libtorch_cuda brings the library.
  add_library(trireme_cublaslt INTERFACE)
  add_library(trireme::cublaslt ALIAS trireme_cublaslt)
  target_include_directories(trireme_cublaslt SYSTEM INTERFACE ${TRIREME_CUBLASLT_INCLUDE})
endif()

# file(CONFIGURE) keeps the time of a file that does not change: configuring again compiles nothing again.
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/pch_anchor.cpp
  CONTENT "// Compiles the precompiled LibTorch header that every module shares.\n")
add_library(trireme_pch OBJECT ${CMAKE_BINARY_DIR}/pch_anchor.cpp)
target_link_libraries(trireme_pch PUBLIC trireme_options trireme::libtorch)
# GCC carries out the template instantiations that a precompiled header asks for in every file that uses the header:
# LibTorch's autograd headers, which few files need, would cost each file two seconds.
target_compile_definitions(trireme_pch PRIVATE FMT_SHARED)
target_precompile_headers(trireme_pch PRIVATE <ATen/ATen.h> <fmt/format.h> <fmt/ranges.h> <filesystem> <functional>
  <map>)

# LibTorch's include folder contains its own fmt, newer than the system's, which #include <fmt/…> finds first. Its inline
# namespace differs from that of the system's libfmt in the other targets.
add_library(trireme_torch_fmt STATIC ${PROJECT_SOURCE_DIR}/src/base/torch/fmt_library.cpp)
target_link_libraries(trireme_torch_fmt PRIVATE trireme_options trireme::libtorch)

set(MPI_CXX_SKIP_MPICXX ON)
find_package(MPI REQUIRED COMPONENTS C)
find_program(TRIREME_MPIRUN_EXECUTABLE mpirun REQUIRED)
# --allow-run-as-root: for containers; --oversubscribe: the tests start more ranks than cores.
set(TRIREME_MPIRUN ${TRIREME_MPIRUN_EXECUTABLE} --allow-run-as-root --oversubscribe)
find_package(HDF5 REQUIRED COMPONENTS C)
find_package(ZLIB REQUIRED)  # libhdf5-dev depends on it
find_package(yaml-cpp REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_library(TRIREME_SENTENCEPIECE sentencepiece REQUIRED)
find_library(TRIREME_SENTENCEPIECE_TRAIN sentencepiece_train REQUIRED)
find_library(TRIREME_PCRE2 pcre2-8 REQUIRED)
find_path(TRIREME_TOML_INCLUDE toml++/toml.h REQUIRED)  # used header-only
find_path(TRIREME_XXHASH_INCLUDE xxhash.h REQUIRED)  # used header-only

add_library(trireme_hdf5 INTERFACE)
add_library(trireme::hdf5 ALIAS trireme_hdf5)
target_include_directories(trireme_hdf5 SYSTEM INTERFACE ${HDF5_INCLUDE_DIRS})
target_link_libraries(trireme_hdf5 INTERFACE ${HDF5_C_LIBRARIES})
if(NOT TARGET yaml-cpp::yaml-cpp)
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()

# Arrow C++ and Parquet come inside the pyarrow wheel; trireme_data links them.
set(TRIREME_WITH_PARQUET OFF)
if(TRIREME_PYTHON_EXECUTABLE)
  execute_process(
    COMMAND ${TRIREME_PYTHON_EXECUTABLE} -c
      "import importlib.util as u,os;print(os.path.dirname(u.find_spec('pyarrow').origin))"
    OUTPUT_VARIABLE arrow_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    file(GLOB arrow_library ${arrow_root}/libarrow.so.*)
    file(GLOB parquet_library ${arrow_root}/libparquet.so.*)
    if(arrow_library AND parquet_library)
      list(GET arrow_library 0 arrow_library)
      list(GET parquet_library 0 parquet_library)
      set(TRIREME_WITH_PARQUET ON)
      add_library(trireme_parquet INTERFACE)
      add_library(trireme::parquet ALIAS trireme_parquet)
      target_include_directories(trireme_parquet SYSTEM INTERFACE ${arrow_root}/include)
      target_link_libraries(trireme_parquet INTERFACE ${parquet_library} ${arrow_library})
    endif()
  endif()
endif()
if(NOT TRIREME_WITH_PARQUET)
  message(STATUS "pyarrow not found: `trireme data` is built without Parquet")
endif()

if(TRIREME_TESTS)
  find_package(GTest REQUIRED)
endif()
