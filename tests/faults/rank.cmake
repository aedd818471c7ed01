# Ranks that die, hang, issue different collectives, get signals, or compute non-finite values.
trireme_test(rank_watch_test TORCH SOURCES rank_watch_test.cpp watch_listener_test.cpp LIBS trireme::watchdog LABELS faults TIMEOUT 180
  DRIVER ${PROJECT_SOURCE_DIR}/tests/shards.sh 4)
target_include_directories(rank_watch_test PRIVATE ${PROJECT_SOURCE_DIR}/src/comm ${PROJECT_SOURCE_DIR}/src/watchdog)
trireme_test(number_guards_test TORCH SOURCES number_guards_test.cpp LIBS trireme::train LABELS faults TIMEOUT 60)
target_include_directories(number_guards_test PRIVATE ${PROJECT_SOURCE_DIR}/src/train)

trireme_test(rank_desync_test TORCH SOURCES rank_desync_test.cpp LIBS trireme::comm RANKS 3 TIMEOUT 60)
set_tests_properties(rank_desync_test.3ranks PROPERTIES LABELS "faults;multi")

add_executable(rank_driver rank_driver.cpp)
target_link_libraries(rank_driver PRIVATE trireme_options trireme::watchdog trireme::world)
target_include_directories(rank_driver PRIVATE ${PROJECT_SOURCE_DIR}/src/comm ${PROJECT_SOURCE_DIR}/src/watchdog)
trireme_use_torch(rank_driver)
set_target_properties(rank_driver PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)

set(quick rank_faults.dead rank_faults.launchers rank_faults.torchrun signal_faults.step signal_faults.bad-step signal_faults.last-evaluation number_faults.stops)  # as in checkpoint.cmake
foreach(test
    rank_faults.dead rank_faults.dead-first rank_faults.hung rank_faults.slow-storage rank_faults.straggler rank_faults.absent rank_faults.network
    rank_faults.environment rank_faults.launchers rank_faults.torchrun
    rank_faults.memory
    machine_faults.crash machine_faults.stack machine_faults.directories machine_faults.clock machine_faults.allocation machine_faults.bootstrap
    signal_faults.early signal_faults.warm-up signal_faults.step signal_faults.usr1 signal_faults.evaluation signal_faults.save signal_faults.twice signal_faults.alone
    signal_faults.bad-step signal_faults.bad-step-fp16 signal_faults.last-evaluation signal_faults.vote signal_faults.without-saving signal_faults.launcher
    number_faults.stops number_faults.skips number_faults.never-saved number_faults.fp16 number_faults.zero-norm number_faults.spike number_faults.spike-skipped)
  string(REGEX MATCH "^([^.]+)\\.(.+)$" parts ${test})
  add_test(NAME ${test}
    COMMAND ${TRIREME_PYTHON_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/${CMAKE_MATCH_1}.py --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
            --mpirun ${TRIREME_MPIRUN_EXECUTABLE} --case ${CMAKE_MATCH_2})
  set(labels faults)
  if(NOT test IN_LIST quick)
    list(APPEND labels slow)
  endif()
  set_tests_properties(${test} PROPERTIES LABELS "${labels}" TIMEOUT 300 PROCESSORS 2 SKIP_RETURN_CODE 77)
endforeach()
# One or two ranks.
set_tests_properties(signal_faults.bad-step signal_faults.last-evaluation number_faults.stops PROPERTIES PROCESSORS 1)
set_tests_properties(rank_faults.dead signal_faults.step PROPERTIES COST 20)

foreach(case memory devices bits nccl)
  add_test(NAME gpu_faults.${case} COMMAND ${TRIREME_PYTHON_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/gpu_faults.py --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
    --mpirun ${TRIREME_MPIRUN_EXECUTABLE} --case ${case})
  set_tests_properties(gpu_faults.${case} PROPERTIES LABELS "faults;gpu" TIMEOUT 400 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)
endforeach()
set_tests_properties(gpu_faults.nccl PROPERTIES LABELS "faults;multigpu")

add_test(NAME soak COMMAND ${TRIREME_PYTHON_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/soak.py --bin ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}
  --mpirun ${TRIREME_MPIRUN_EXECUTABLE} --minutes 2)
set_tests_properties(soak PROPERTIES LABELS "faults;slow" TIMEOUT 900 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)

add_test(NAME faults_table COMMAND ${TRIREME_PYTHON_EXECUTABLE} ${CMAKE_CURRENT_LIST_DIR}/table_test.py --ctest ${CMAKE_CTEST_COMMAND}
  --build ${CMAKE_BINARY_DIR})
set_tests_properties(faults_table PROPERTIES LABELS "cpu;faults" TIMEOUT 60)
