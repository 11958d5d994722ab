// Growing work memory of the CPU backend, kept between calls so that a step does not allocate.
// Thread rule: one owner; the memory may be handed to tasks that write disjoint parts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace deepinfer {

template <typename T>
class Scratch {
 public:
  // At least `count` elements, 64-byte aligned, contents unspecified; valid until the next call.
  // Throws std::bad_alloc, which Model::Step turns into a Status.
  T* Get(int64_t count) {
    if (count > capacity_) {
      const size_t size_bytes = (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
      // The step fails without this memory, but the next one may need less.
      capacity_ = 0;
      memory_.reset();
      memory_.reset(static_cast<T*>(std::aligned_alloc(64, size_bytes)));
      if (memory_ == nullptr) throw std::bad_alloc();
      capacity_ = count;
    }
    return memory_.get();
  }

 private:
  struct Release {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Release> memory_;
  int64_t capacity_ = 0;
};

}  // namespace deepinfer
