# SPDX-License-Identifier: Apache-2.0
# ep_dispatch_perf and ep_combine_perf. NCCL_EP_HOME is where libnccl_ep was installed, or its source
# tree, whose build/ has the library.
set(NCCL_EP_HOME "$ENV{NCCL_EP_HOME}" CACHE PATH "Where libnccl_ep is")
find_path(NCCL_EP_INCLUDE_DIR nccl_ep.h HINTS ${NCCL_EP_HOME}/include REQUIRED)
find_library(NCCL_EP_LIBRARY nccl_ep HINTS ${NCCL_EP_HOME}
  PATH_SUFFIXES lib lib64 lib/${CMAKE_LIBRARY_ARCHITECTURE} build REQUIRED)

foreach(COLL ep_dispatch ep_combine)
  list(APPEND COLLS ${COLL})
  # Its target is made further down.
  cmake_language(EVAL CODE "
    cmake_language(DEFER CALL target_include_directories ${COLL}_perf PRIVATE ${NCCL_EP_INCLUDE_DIR})
    cmake_language(DEFER CALL target_link_libraries ${COLL}_perf PRIVATE ${NCCL_EP_LIBRARY})")
endforeach()
