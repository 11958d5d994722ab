# Target xgrammar: the grammar library as a static library, built from the sources that
# scripts/setup unpacked. Its own CMake project would build Python bindings and ask for link-time
# optimisation; here it follows this build's compiler, ccache and sanitizers.

set(DEEPINFER_XGRAMMAR_VERSION 0.2.9)
if(DEFINED ENV{XDG_CACHE_HOME})
  set(deepinfer_cache $ENV{XDG_CACHE_HOME}/deepinfer)
else()
  set(deepinfer_cache $ENV{HOME}/.cache/deepinfer)
endif()
set(DEEPINFER_XGRAMMAR_SOURCE ${deepinfer_cache}/xgrammar-${DEEPINFER_XGRAMMAR_VERSION}
    CACHE PATH "Sources of xgrammar, unpacked by scripts/setup")
if(NOT EXISTS ${DEEPINFER_XGRAMMAR_SOURCE}/include/xgrammar/matcher.h)
  message(FATAL_ERROR "no sources of xgrammar ${DEEPINFER_XGRAMMAR_VERSION} in "
                      "${DEEPINFER_XGRAMMAR_SOURCE}: run scripts/setup")
endif()

file(GLOB xgrammar_sources ${DEEPINFER_XGRAMMAR_SOURCE}/cpp/*.cc
     ${DEEPINFER_XGRAMMAR_SOURCE}/cpp/converter_ext/*.cc
     ${DEEPINFER_XGRAMMAR_SOURCE}/cpp/support/*.cc)

# What follows a position without choice is asked for to learn whether one byte does; the library
# goes on to the end of such a run, which may be long, and a grammar need not have one.
set(xgrammar_matcher ${DEEPINFER_XGRAMMAR_SOURCE}/cpp/grammar_matcher.cc)
set(xgrammar_run "while (can_find_next_char) {")
file(READ ${xgrammar_matcher} xgrammar_text)
string(FIND "${xgrammar_text}" "${xgrammar_run}" xgrammar_found)
if(xgrammar_found EQUAL -1)
  message(FATAL_ERROR "${xgrammar_matcher}: no loop over forced bytes to bound")
endif()
string(REPLACE "${xgrammar_run}" "while (can_find_next_char && num_accepted_chars == 0) {"
       xgrammar_text "${xgrammar_text}")
set(xgrammar_bounded ${CMAKE_BINARY_DIR}/xgrammar/grammar_matcher.cc)
file(CONFIGURE OUTPUT ${xgrammar_bounded} CONTENT "${xgrammar_text}" @ONLY)
list(REMOVE_ITEM xgrammar_sources ${xgrammar_matcher})

add_library(xgrammar STATIC EXCLUDE_FROM_ALL ${xgrammar_sources} ${xgrammar_bounded})
target_include_directories(xgrammar SYSTEM
  PUBLIC ${DEEPINFER_XGRAMMAR_SOURCE}/include ${DEEPINFER_XGRAMMAR_SOURCE}/3rdparty/dlpack/include
  PRIVATE ${DEEPINFER_XGRAMMAR_SOURCE}/cpp ${DEEPINFER_XGRAMMAR_SOURCE}/3rdparty/picojson)
target_compile_definitions(xgrammar PRIVATE XGRAMMAR_ENABLE_CPPTRACE=0
                                            XGRAMMAR_ENABLE_INTERNAL_CHECK=0)
# In place of the options of this directory: our warnings are not about its code, and without debug
# information one object in ccache serves every preset and working folder.
set_target_properties(xgrammar PROPERTIES
  CXX_STANDARD 17 COMPILE_OPTIONS "-march=x86-64-v3;-O2;-g0;-w")
# Memory errors of its users show without it; how its threads wait for each other does not.
if(DEEPINFER_SANITIZE MATCHES "thread")
  target_compile_options(xgrammar PRIVATE -fsanitize=${DEEPINFER_SANITIZE}
                                          -fno-omit-frame-pointer -fno-sanitize-recover=all)
endif()
if(DEEPINFER_FUZZ)
  target_compile_options(xgrammar PRIVATE -fsanitize=address,undefined)
endif()
target_link_libraries(xgrammar PUBLIC Threads::Threads)
