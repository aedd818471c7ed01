# CPack: `TRIREME_BUNDLE=ON cpack --config build/release/CPackConfig.cmake -G TZST` (or TGZ, DEB). The archives have all
# libraries; the .deb has LibTorch, CUDA and Arrow, which Debian does not package, and depends on packages for the rest.

set(CPACK_PACKAGE_NAME trireme)
set(CPACK_PACKAGE_VENDOR "Trireme")
set(CPACK_PACKAGE_CONTACT "Trireme <trireme@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Native trainer of language models (LibTorch, NCCL, MPI)")
set(CPACK_PACKAGE_VERSION "${TRIREME_PACKAGE_VERSION}")
string(TOLOWER "${CMAKE_SYSTEM_NAME}-${CMAKE_SYSTEM_PROCESSOR}" platform)
set(CPACK_PACKAGE_FILE_NAME "trireme-${CPACK_PACKAGE_VERSION}-${platform}")
set(CPACK_GENERATOR TZST DEB)
set(CPACK_THREADS 0)  # one per core, where the compression has threads
set(CPACK_STRIP_FILES OFF)  # stack traces of the log need the programs' exported names
set(CPACK_MONOLITHIC_INSTALL ON)
set(CPACK_PACKAGING_INSTALL_PREFIX "/")

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "openmpi-bin")
set(CPACK_PROJECT_CONFIG_FILE ${PROJECT_SOURCE_DIR}/cmake/package_options.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/cmake/package_staging.cmake)
set(CPACK_TRIREME_LIBRARY_FOLDER ${TRIREME_LIBRARY_FOLDER})
set(CPACK_TRIREME_BUILD ${CMAKE_BINARY_DIR})
set(CPACK_TRIREME_PROGRAM ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/trireme)
include(CPack)
