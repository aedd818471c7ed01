# The fuzz targets: NAME_fuzz.cpp with corpus/NAME, fixtures of other tests, and dictionaries/….
set(fuzz_targets yaml npy safetensors model hdf5 hdf5_rows tokenizer manifest)
set(tests ${CMAKE_CURRENT_LIST_DIR}/..)
foreach(target ${fuzz_targets})
  set(${target}_inputs ${CMAKE_CURRENT_LIST_DIR}/corpus/${target} ${tests}/formats/fixtures)
  set(${target}_options -rss_limit_mb=512 -malloc_limit_mb=256 -max_len=4096)
  # Freed memory in the sanitizer's quarantine counts as memory in use: up to half of the limit and more.
  set(${target}_environment ASAN_OPTIONS=quarantine_size_mb=32)
endforeach()
list(APPEND yaml_inputs ${tests}/config/fixtures)
list(APPEND npy_inputs ${tests}/data/fixtures)
list(APPEND hdf5_inputs ${tests}/data/fixtures)
set(yaml_dictionary yaml)
set(npy_dictionary npy)
set(safetensors_dictionary json)
set(model_dictionary json)
set(manifest_dictionary manifest)
# libhdf5 1.10 leaks when it refuses some files, and allocates as much memory as a damaged file declares; it handles a
# failed allocation.
set(hdf5_options -rss_limit_mb=2048 -malloc_limit_mb=2048 -max_len=16384)
set(hdf5_rows_options ${hdf5_options})
set(hdf5_environment ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024)
set(hdf5_rows_environment ${hdf5_environment})
set(tokenizer_options -rss_limit_mb=512 -malloc_limit_mb=256 -max_len=16384)
