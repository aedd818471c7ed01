# cmake --install build/release --prefix DIR installs programs, presets, Slurm scripts and docs. The programs load
# LibTorch and the other libraries from where they were built, so the same .venv and packages must stay on the machine.

include(GNUInstallDirs)
install(TARGETS train_llama train_bert train_gpt trireme_tool RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY models/decoder/presets/ DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme/presets/decoder)
install(DIRECTORY models/bert/presets/ DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme/presets/bert)
install(DIRECTORY scripts/launch/ DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme/launch)
install(DIRECTORY scripts/slurm/ DESTINATION ${CMAKE_INSTALL_DATADIR}/trireme/slurm USE_SOURCE_PERMISSIONS)
install(FILES README.md docs/errors.md docs/faults.md docs/benchmarks.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/howto docs/design docs/results DESTINATION ${CMAKE_INSTALL_DOCDIR})
