# Runs inside `cmake --install`, after the programs were copied; cmake/TriremeInstall.cmake sets its variables. With
# TRIREME_BUNDLE it copies the shared libraries that the programs load into lib/trireme and limits the programs' search
# path to it; else it does nothing.

if(NOT "$ENV{TRIREME_BUNDLE}" STREQUAL "")
  set(TRIREME_BUNDLE "$ENV{TRIREME_BUNDLE}")
endif()
if(NOT TRIREME_BUNDLE)
  return()
endif()
set(root "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")
set(folder "${root}/${TRIREME_LIBRARY_FOLDER}")

# --- what the programs load -------------------------------------------------------------------------------------------

# glibc and the loader belong to the target's kernel and C library, libcuda and libnvidia-* to its driver.
set(left_to_target "^(ld-linux.*|libc|libm|libdl|libpthread|librt|libutil|libresolv|libanl|libnsl)\\.so" "^libcuda\\.so" "^libnvidia-")
# A library found in two folders is one file reached by two paths of a wheel.
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${TRIREME_PROGRAM_FILE} LIBRARIES ${TRIREME_LOADED_LIBRARIES}
  RESOLVED_DEPENDENCIES_VAR resolved UNRESOLVED_DEPENDENCIES_VAR missing CONFLICTING_DEPENDENCIES_PREFIX conflict
  PRE_EXCLUDE_REGEXES ${left_to_target})
if(missing)
  message(FATAL_ERROR "TRIREME_BUNDLE: the programs need libraries that are not on this machine: ${missing}")
endif()
list(APPEND resolved ${TRIREME_LOADED_LIBRARIES})
foreach(name ${conflict_FILENAMES})
  list(GET conflict_${name} 0 first)
  list(APPEND resolved ${first})
endforeach()

# Libraries opened by name at run time, which the lists of needed libraries do not show: cuDNN's parts, and NVRTC, which
# LibTorch and cuDNN compile some kernels with. Each beside the library that opens it.
set(opened "")
foreach(library ${resolved})
  get_filename_component(name ${library} NAME)
  get_filename_component(beside ${library} DIRECTORY)
  if(name MATCHES "^libcudnn\\.so")
    file(GLOB found ${beside}/libcudnn_*.so.*)
    list(APPEND opened ${found})
  elseif(name MATCHES "^libtorch_cuda\\.so")
    list(APPEND opened ${beside}/libcaffe2_nvrtc.so)
  elseif(name MATCHES "^libcublasLt\\.so")
    file(GLOB found ${beside}/libnvrtc.so.* ${beside}/libnvrtc-builtins.so.*)
    list(APPEND opened ${found})
  endif()
endforeach()

# Sets VARIABLE to the search path inside FILE, "" if it has none.
function(search_paths variable file)
  set(rpath "")
  set(runpath "")
  file(READ_ELF ${file} RPATH rpath RUNPATH runpath)
  string(REPLACE ";" ":" path "${rpath}${runpath}")
  set(${variable} "${path}" PARENT_SCOPE)
endfunction()

# --- copies -------------------------------------------------------------------------------------------------------------

file(MAKE_DIRECTORY "${folder}/system")
set(bytes 0)
set(copied "")
foreach(library ${resolved} ${opened})
  if(NOT EXISTS ${library})
    message(FATAL_ERROR "TRIREME_BUNDLE: ${library} is missing: LibTorch's CUDA wheels are incomplete")
  endif()
  get_filename_component(name ${library} NAME)
  get_filename_component(real ${library} REALPATH)
  if(name IN_LIST copied)
    continue()
  endif()
  list(APPEND copied ${name})
  # Packages of the distribution install into the system's library folders; wheels and LibTorch do not.
  if(real MATCHES "^(/usr)?/lib")
    set(target "${folder}/system/${name}")
  else()
    set(target "${folder}/${name}")
  endif()
  file(COPY_FILE ${real} ${target} ONLY_IF_DIFFERENT)
  file(CHMOD ${target} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
  # Search paths of the wheels leave their folder (../../nvidia/…) or name the working directory: here all lie in one.
  search_paths(paths ${target})
  if(NOT paths STREQUAL "" AND NOT paths STREQUAL "$ORIGIN")
    file(RPATH_CHANGE FILE ${target} OLD_RPATH "${paths}" NEW_RPATH "$ORIGIN")
  endif()
  file(SIZE ${target} size)
  math(EXPR bytes "${bytes} + ${size}")
endforeach()

get_filename_component(name ${TRIREME_PROGRAM_FILE} NAME)
set(installed "${root}/${TRIREME_BINDIR}/${name}")
search_paths(paths ${installed})
file(RPATH_CHANGE FILE ${installed} OLD_RPATH "${paths}" NEW_RPATH "${TRIREME_BUNDLE_RPATH}")
list(LENGTH copied count)
math(EXPR mib "${bytes} / 1048576")
message(STATUS "Bundled: ${count} libraries, ${mib} MiB, into ${folder}")
