# The fuzz targets: NAME_fuzz.cpp with corpus/NAME, fixtures of other tests, and dictionaries/….
set(fuzz_targets yaml npy safetensors model hdf5 hdf5_rows tokenizer tokenizer_json manifest kineto megatron chat_template
  key_store watch watch_answer)
set(tests ${CMAKE_CURRENT_LIST_DIR}/..)
foreach(target ${fuzz_targets})
  set(${target}_inputs ${CMAKE_CURRENT_LIST_DIR}/corpus/${target} ${tests}/formats/fixtures)
  set(${target}_options -rss_limit_mb=512 -malloc_limit_mb=256 -max_len=4096)
  # Freed memory in the sanitizer's quarantine counts as memory in use: up to half of the limit and more.
  set(${target}_environment ASAN_OPTIONS=quarantine_size_mb=32)
endforeach()
# Programs of connections and messages of ranks, no files of other tests.
foreach(target key_store watch watch_answer)
  set(${target}_inputs ${CMAKE_CURRENT_LIST_DIR}/corpus/${target})
  set(${target}_options -rss_limit_mb=512 -malloc_limit_mb=4 -max_len=4096)
  set(${target}_dictionary ranks)
endforeach()
list(APPEND yaml_inputs ${tests}/config/fixtures)
list(APPEND npy_inputs ${tests}/data/fixtures)
list(APPEND hdf5_inputs ${tests}/data/fixtures)
set(chat_template_options -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=4096)
set(yaml_dictionary yaml)
set(npy_dictionary npy)
set(safetensors_dictionary json)
set(model_dictionary json)
set(kineto_dictionary json)
set(tokenizer_json_dictionary json)
set(manifest_dictionary manifest)
# libhdf5 1.10 leaks when it refuses some files, and allocates as much memory as a damaged file declares; it handles a
# failed allocation.
set(hdf5_options -rss_limit_mb=2048 -malloc_limit_mb=2048 -max_len=16384)
set(hdf5_rows_options ${hdf5_options})
set(hdf5_environment ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1024)
set(hdf5_rows_environment ${hdf5_environment})
set(tokenizer_options -rss_limit_mb=512 -malloc_limit_mb=256 -max_len=16384)
