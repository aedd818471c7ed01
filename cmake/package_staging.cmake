# Runs in cpack between installation and packing (CPACK_PRE_BUILD_SCRIPTS).
if(CPACK_GENERATOR STREQUAL "DEB")
  # The packages that the .deb depends on have these.
  file(REMOVE_RECURSE "${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr/${CPACK_TRIREME_LIBRARY_FOLDER}/system")
endif()
