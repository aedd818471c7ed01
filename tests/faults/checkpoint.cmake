# Faults of checkpoints: during writing, in their files, and during resume. The default run has a selection of about a
# minute; scripts/test.sh -L faults runs all.
set(quick F02 F31)
foreach(part
    saves:F02 saves:F03 saves:F13 saves:F14 saves:F15 saves:F36 saves:full
    files:F10 files:F11 files:F12 files:F31 files:F37 files:storage files:other-run
    resume:F22 resume:F23 resume:F33 resume:world resume:elastic resume:configuration resume:extend resume:lives resume:tool)
  string(REPLACE ":" ";" part ${part})
  list(GET part 0 script)
  list(GET part 1 case)
  add_test(NAME faults.checkpoint.${case}
    COMMAND ${TRIREME_PYTHON_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/checkpoint_${script}_test.py --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
            --mpirun ${TRIREME_MPIRUN_EXECUTABLE} --case ${case})
  if(case IN_LIST quick)
    set_tests_properties(faults.checkpoint.${case} PROPERTIES LABELS faults)
  else()
    set_tests_properties(faults.checkpoint.${case} PROPERTIES LABELS "faults;slow" PROCESSORS 2)
  endif()
  set_tests_properties(faults.checkpoint.${case} PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77
    ENVIRONMENT "TRIREME_DEVICE=cpu;OMP_NUM_THREADS=1")
endforeach()
