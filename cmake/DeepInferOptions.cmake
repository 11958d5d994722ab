# Compiler and linker settings shared by every target.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()

find_program(DEEPINFER_CCACHE ccache)
if(DEEPINFER_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DEEPINFER_CCACHE})
endif()

# -ffp-contract=off: a contracted multiply-add would change bits between builds.
# Files that need AVX-512 carry their own -m flags and are reached through kernels/dispatch.cc.
add_compile_options(-march=x86-64-v3 -ffp-contract=off -fno-math-errno
                    -Wall -Wextra -Wshadow -Werror)

# Without the build folder in debug info and preprocessed text, ccache shares objects between
# presets whose macros make no difference to a file: after the tests a release build is quick.
add_compile_options(-fdebug-prefix-map=${CMAKE_BINARY_DIR}=.)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  add_compile_options(-fno-working-directory)
  # GCC 12 reports both for inlined std::string and std::variant code that is correct.
  add_compile_options(-Wno-restrict -Wno-maybe-uninitialized)
endif()

# Line tables only: full debug info doubles link time and object size.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g1")

find_program(DEEPINFER_MOLD mold)
if(DEEPINFER_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

if(DEEPINFER_SANITIZE)
  add_compile_options(-fsanitize=${DEEPINFER_SANITIZE} -fno-omit-frame-pointer
                      -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${DEEPINFER_SANITIZE})
  if(DEEPINFER_SANITIZE MATCHES "thread")
    # ThreadSanitizer does not know fences, and Asio's own are redundant with its locks.
    add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
  endif()
endif()

if(DEEPINFER_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "DEEPINFER_FUZZ needs clang: use the fuzz preset")
  endif()
  add_compile_options(-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  # Compiling takes longer than the short runs, which -O2 would not make noticeably shorter.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  add_link_options(-fsanitize=address,undefined)
endif()

if(DEEPINFER_TEST_HOOKS)
  add_compile_definitions(DEEPINFER_TEST_HOOKS=1)
endif()
