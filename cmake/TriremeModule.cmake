# Files of a module that are compiled as one. Headers and the templates that they instantiate are most of the compile
# time of a file; a batch shares them. Larger batches make a change of one file slower to compile.
set(TRIREME_UNITY_BATCH 10)

# Compiles TARGET's C++ with -O1, which takes a quarter less time: for code whose own loops do not count, because it runs a
# few times a step, or because the time goes into libraries and kernels.
function(trireme_compile_quickly target)
  # g++ 13 and later refuse a precompiled header whose settings for the processor differ: these two are -O2's on x86.
  include(CheckCXXCompilerFlag)
  check_cxx_compiler_flag("-munroll-only-small-loops -mvzeroupper" TRIREME_HAS_O2_SETTINGS)
  target_compile_options(${target} PRIVATE
    "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1$<$<BOOL:${TRIREME_HAS_O2_SETTINGS}>:;-munroll-only-small-loops;-mvzeroupper>>")
endfunction()

# trireme_public_headers(MODULE folders...)
#
# Puts the public headers of MODULE on the include path of trireme_MODULE and of the targets that link it: those below
# include/trireme/MODULE, and those in FOLDERS outside of src/. The path is build/include/MODULE, which has links to them
# alone: to include a header of a module that is not among the DEPS does not compile.
#
# The target `headers` compiles each of them as a file of its own, with the include path that its module has.
add_custom_target(headers)
function(trireme_public_headers module)
  set(own ${PROJECT_SOURCE_DIR}/include/trireme/${module})
  set(patterns ${own}/*.h ${own}/*/*.h)
  foreach(source_folder ${ARGN})
    cmake_path(IS_PREFIX CMAKE_CURRENT_SOURCE_DIR ${source_folder} private)
    if(NOT private)
      list(APPEND patterns ${source_folder}/*.h ${source_folder}/*.inc)
    endif()
  endforeach()
  file(GLOB headers CONFIGURE_DEPENDS ${patterns})
  set(folder ${CMAKE_BINARY_DIR}/include/${module})
  file(REMOVE_RECURSE ${folder})
  file(MAKE_DIRECTORY ${folder})
  set(files "")
  foreach(header ${headers})
    file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${header})
    string(REGEX REPLACE "^include/" "" name ${name})
    get_filename_component(parent ${folder}/${name} DIRECTORY)
    file(MAKE_DIRECTORY ${parent})
    file(CREATE_LINK ${header} ${folder}/${name} SYMBOLIC)
    if(name MATCHES "\\.h$")
      set(file ${CMAKE_BINARY_DIR}/headers/${name}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${name}\"\n")
      list(APPEND files ${file})
    endif()
  endforeach()
  target_include_directories(trireme_${module} PUBLIC ${folder})
  if(files)
    add_library(trireme_${module}_headers OBJECT EXCLUDE_FROM_ALL ${files})
    target_link_libraries(trireme_${module}_headers PRIVATE trireme_${module})
    add_dependencies(headers trireme_${module}_headers)
  endif()
endfunction()

# trireme_module(NAME [DIR dirs...] [TORCH] [QUICK] [DEPS targets...] [LIBS targets...])
#
# One static library per module: every .cpp of DIR (src/NAME by default), without subdirectories. DEPS: other modules of
# the project, whose headers it may use; LIBS: external libraries. TORCH: compiles it with LibTorch and the precompiled
# header. QUICK: see trireme_compile_quickly. With TRIREME_UNITY several files are compiled as one, so names in anonymous namespaces must differ within a
# module.
function(trireme_module name)
  cmake_parse_arguments(ARG "TORCH;QUICK" "" "DIR;DEPS;LIBS" ${ARGN})
  if(NOT ARG_DIR)
    set(ARG_DIR ${PROJECT_SOURCE_DIR}/src/${name})
  endif()
  list(TRANSFORM ARG_DIR APPEND /*.cpp OUTPUT_VARIABLE patterns)
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  if(NOT TRIREME_WITH_CUDA)
    list(FILTER sources EXCLUDE REGEX "_cuda\\.cpp$")
  endif()
  if(NOT sources)
    file(WRITE ${CMAKE_BINARY_DIR}/empty.cpp "")
    set(sources ${CMAKE_BINARY_DIR}/empty.cpp)
  endif()
  add_library(trireme_${name} STATIC ${sources})
  add_library(trireme::${name} ALIAS trireme_${name})
  list(TRANSFORM ARG_DEPS PREPEND trireme::)
  target_link_libraries(trireme_${name} PUBLIC trireme_options ${ARG_DEPS} PRIVATE ${ARG_LIBS})
  trireme_public_headers(${name} ${ARG_DIR})
  set_target_properties(trireme_${name} PROPERTIES UNITY_BUILD "${TRIREME_UNITY}" UNITY_BUILD_BATCH_SIZE ${TRIREME_UNITY_BATCH})
  if(ARG_TORCH)
    trireme_use_torch(trireme_${name})
  endif()
  if(ARG_QUICK)
    trireme_compile_quickly(trireme_${name})
  endif()
endfunction()

# Compiles TARGET with LibTorch, and the fmt that comes with it, through the one precompiled header that all modules
# share. GCC refuses it where macros differ from those that it was compiled with, hence FMT_SHARED, which the system's
# fmt brings.
function(trireme_use_torch target)
  target_link_libraries(${target} PUBLIC trireme::libtorch trireme_torch_fmt)
  target_compile_definitions(${target} PRIVATE FMT_SHARED)
  target_precompile_headers(${target} REUSE_FROM trireme_pch)
  set_target_properties(${target} PROPERTIES UNITY_BUILD "${TRIREME_UNITY}" UNITY_BUILD_BATCH_SIZE ${TRIREME_UNITY_BATCH})
endfunction()

# trireme_test(NAME SOURCES files... [TORCH] [LABELS ...] [RANKS n...] [LIBS ...] [TIMEOUT seconds]
#   [DRIVER command...])
#
# A GoogleTest program. RANKS: also run it under mpirun with that many ranks (label multi) instead of alone. DRIVER: a
# command that starts the program, which is its last argument.
function(trireme_test name)
  cmake_parse_arguments(ARG "TORCH" "TIMEOUT" "SOURCES;LABELS;RANKS;LIBS;DRIVER" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE trireme_options ${ARG_LIBS} GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests
    UNITY_BUILD "${TRIREME_UNITY}" UNITY_BUILD_BATCH_SIZE ${TRIREME_UNITY_BATCH})
  target_compile_definitions(${name} PRIVATE
    TRIREME_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRIREME_BINARY_DIR="${CMAKE_BINARY_DIR}"
    TRIREME_PYTHON="${TRIREME_PYTHON_EXECUTABLE}")
  trireme_compile_quickly(${name})
  if(ARG_TORCH)
    trireme_use_torch(${name})
    if(TARGET trireme::cuda_operators)
      target_link_libraries(${name} PRIVATE trireme::cuda_operators)
    endif()
  endif()
  if(NOT ARG_LABELS)
    set(ARG_LABELS cpu)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  # One thread of LibTorch's: ctest keeps the cores busy with several tests, and threads that spin while they wait for
  # each other take several times the processor time of one.
  set(environment "")
  if(ARG_TORCH AND NOT ARG_LABELS MATCHES "gpu")
    set(environment ENVIRONMENT "OMP_NUM_THREADS=1")
  endif()
  if(ARG_RANKS)
    target_link_libraries(${name} PRIVATE trireme_mpi_test_main)
    foreach(n ${ARG_RANKS})
      add_test(NAME ${name}.${n}ranks COMMAND ${TRIREME_MPIRUN} -n ${n} $<TARGET_FILE:${name}>)
      math(EXPR slots "(${n} + 2) / 3")
      set_tests_properties(${name}.${n}ranks PROPERTIES LABELS "multi" TIMEOUT ${ARG_TIMEOUT}
        PROCESSORS ${slots} SKIP_REGULAR_EXPRESSION "SKIPPED: " ${environment})
    endforeach()
  else()
    target_link_libraries(${name} PRIVATE GTest::gtest_main)
    add_test(NAME ${name} COMMAND ${ARG_DRIVER} $<TARGET_FILE:${name}>)
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ${environment})
  endif()
endfunction()

# Gives the tests of FOLDER and of its subfolders five times their time: sanitizers slow them.
function(trireme_extend_timeouts folder)
  get_property(tests DIRECTORY ${folder} PROPERTY TESTS)
  foreach(test ${tests})
    get_property(seconds TEST ${test} DIRECTORY ${folder} PROPERTY TIMEOUT)
    if(seconds)
      math(EXPR seconds "${seconds} * 5")
      set_property(TEST ${test} DIRECTORY ${folder} PROPERTY TIMEOUT ${seconds})
    endif()
  endforeach()
  get_property(subfolders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder ${subfolders})
    trireme_extend_timeouts(${subfolder})
  endforeach()
endfunction()
