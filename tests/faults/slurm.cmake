add_test(NAME slurm_faults
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/slurm_faults.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${TRIREME_PYTHON_EXECUTABLE})
# Two clusters on one machine would conflict over ports and jobs.
set_tests_properties(slurm_faults PROPERTIES LABELS "faults;slurm;slow" TIMEOUT 400 RUN_SERIAL TRUE RESOURCE_LOCK slurm SKIP_RETURN_CODE 77)

# Two nodes with a network between them.
foreach(case flap cut off meet)
  add_test(NAME node_faults.${case}
    COMMAND ${CMAKE_CURRENT_LIST_DIR}/node_faults.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${TRIREME_PYTHON_EXECUTABLE} ${case})
  set_tests_properties(node_faults.${case} PROPERTIES LABELS "faults;slurm;slow" TIMEOUT 300 RUN_SERIAL TRUE RESOURCE_LOCK slurm SKIP_RETURN_CODE 77)
endforeach()
