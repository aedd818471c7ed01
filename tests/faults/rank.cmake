# Dead, hung and disagreeing ranks.
trireme_test(rank_watch_test TORCH SOURCES rank_watch_test.cpp LIBS trireme::comm LABELS faults TIMEOUT 180)
target_include_directories(rank_watch_test PRIVATE ${PROJECT_SOURCE_DIR}/src/comm)
