# Read by cpack once for each generator (CPACK_PROJECT_CONFIG_FILE).
if(CPACK_GENERATOR STREQUAL "DEB")
  set(CPACK_PACKAGING_INSTALL_PREFIX "/usr")
  # CPack's own CPACK_DEBIAN_PACKAGE_SHLIBDEPS also looks into the bundled libraries: that takes minutes, and fails where the
  # GPU driver's library is absent. What the programs need is enough: the bundled ones need nothing else of Debian.
  set(work "${CPACK_TRIREME_BUILD}/shlibdeps")
  file(WRITE "${work}/debian/control" "Source: trireme\n\nPackage: trireme\nArchitecture: any\n")
  execute_process(COMMAND dpkg-shlibdeps --ignore-missing-info -O ${CPACK_TRIREME_PROGRAM} WORKING_DIRECTORY "${work}"
    OUTPUT_VARIABLE depends ERROR_VARIABLE said RESULT_VARIABLE failed)
  if(failed OR NOT depends MATCHES "shlibs:Depends=([^\n]+)")
    message(FATAL_ERROR "dpkg-shlibdeps (package dpkg-dev) does not tell what the .deb depends on: ${said}")
  endif()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "${CMAKE_MATCH_1}")
endif()
