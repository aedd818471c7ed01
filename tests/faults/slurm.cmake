add_test(NAME slurm_faults
  COMMAND ${CMAKE_CURRENT_LIST_DIR}/slurm_faults.sh ${CMAKE_RUNTIME_OUTPUT_DIRECTORY} ${TRIREME_PYTHON_EXECUTABLE})
# Two clusters on one machine would conflict over ports and jobs.
set_tests_properties(slurm_faults PROPERTIES LABELS "faults;slurm;slow" TIMEOUT 400 RUN_SERIAL TRUE RESOURCE_LOCK slurm SKIP_RETURN_CODE 77)
