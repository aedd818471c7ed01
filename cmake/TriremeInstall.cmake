# cmake --install build/release --prefix DIR: programs, libraries, man pages, completions, presets, Slurm scripts, docs.
#
# TRIREME_BUNDLE=ON (a CMake option, or a variable of the environment of `cmake --install` and `cpack`) copies every
# shared library that the programs load, except glibc and the driver's, into lib/trireme: the folder may then be moved to
# another machine. OFF leaves the libraries where the build found them.

option(TRIREME_BUNDLE "Install the shared libraries as well" OFF)
set(TRIREME_LIBRARY_FOLDER lib/trireme)

# lib/trireme has what no distribution packages (LibTorch, CUDA, Arrow). lib/trireme/system has copies of the build
# machine's packages, used where the target has none: the target's MPI belongs to its mpirun and its MPI plugins.
get_filename_component(mpi_folder ${MPI_mpi_LIBRARY} REALPATH)
string(REGEX REPLACE "/lib/([^/]+-linux-gnu)/.*" "/lib/\\1" system_folder ${mpi_folder})
if(system_folder STREQUAL mpi_folder)
  get_filename_component(system_folder ${mpi_folder} DIRECTORY)
endif()
set(bundle_rpath "$ORIGIN/../${TRIREME_LIBRARY_FOLDER}:${system_folder}:$ORIGIN/../${TRIREME_LIBRARY_FOLDER}/system")
string(REPLACE ":" ";" bundle_rpath_list "${bundle_rpath}")
# INSTALL_RPATH_USE_LINK_PATH leaves out folders inside the source tree, where the Python environment of setup.sh is.
foreach(library ${torch_root}/lib/libtorch_cpu.so ${TRIREME_NCCL_LIBRARY} ${parquet_library})
  get_filename_component(folder ${library} DIRECTORY)
  list(APPEND link_rpath ${folder})
endforeach()
set_target_properties(trireme_tool PROPERTIES INSTALL_RPATH "${bundle_rpath_list};${link_rpath}" INSTALL_RPATH_USE_LINK_PATH ON)

include(GNUInstallDirs)
set(share ${CMAKE_INSTALL_DATADIR}/trireme)
install(TARGETS trireme_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
# Its other names (src/apps/CMakeLists.txt) are symbolic links beside it, and installed as such.
foreach(name ${TRIREME_NAMES})
  install(PROGRAMS ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${name} DESTINATION ${CMAKE_INSTALL_BINDIR})
endforeach()
install(DIRECTORY models/decoder/presets/ DESTINATION ${share}/presets/decoder)
install(DIRECTORY models/bert/presets/ DESTINATION ${share}/presets/bert)
install(DIRECTORY models/decoder/chat_templates/ DESTINATION ${share}/chat_templates)
install(DIRECTORY scripts/launch/ DESTINATION ${share}/launch)
install(DIRECTORY scripts/slurm/ DESTINATION ${share}/slurm USE_SOURCE_PERMISSIONS)
install(DIRECTORY docs/ DESTINATION ${share}/docs)
install(FILES README.md DESTINATION ${share})

# Completions and man pages: the program writes those of each name.
set(stamps "")
foreach(program trireme train_llama train_bert train_gpt)
  set(stamp ${CMAKE_BINARY_DIR}/interface/${program}.stamp)
  add_custom_command(OUTPUT ${stamp} COMMAND ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${program} --write-interface ${CMAKE_BINARY_DIR}/interface
    COMMAND ${CMAKE_COMMAND} -E touch ${stamp} DEPENDS trireme_tool COMMENT "Writing completions and man page of ${program}")
  list(APPEND stamps ${stamp})
endforeach()
add_custom_target(interface ALL DEPENDS ${stamps})
install(DIRECTORY ${CMAKE_BINARY_DIR}/interface/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(DIRECTORY ${CMAKE_BINARY_DIR}/interface/bash/ DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(DIRECTORY ${CMAKE_BINARY_DIR}/interface/zsh/ DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
install(DIRECTORY ${CMAKE_BINARY_DIR}/interface/fish/ DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

# Loaded at start where there is a driver (src/base/cuda_libraries.cpp), so the programs do not name it.
set(loaded_libraries "")
if(TRIREME_WITH_CUDA)
  set(loaded_libraries ${torch_root}/lib/libtorch_cuda.so)
endif()
install(CODE "
  set(TRIREME_BUNDLE \"${TRIREME_BUNDLE}\")
  set(TRIREME_LOADED_LIBRARIES \"${loaded_libraries}\")
  set(TRIREME_PROGRAM_FILE \"$<TARGET_FILE:trireme_tool>\")
  set(TRIREME_BINDIR \"${CMAKE_INSTALL_BINDIR}\")
  set(TRIREME_BUNDLE_RPATH [==[${bundle_rpath}]==])
  set(TRIREME_LIBRARY_FOLDER \"${TRIREME_LIBRARY_FOLDER}\")")
install(SCRIPT cmake/bundle_libraries.cmake)

include(TriremePackage)
