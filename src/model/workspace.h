// Scratch memory of a step: a stack of device chunks that grows to the largest step seen and is
// reused afterwards.
// Thread rule: step thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace deepinfer {

class Workspace {
 public:
  explicit Workspace(Operators* ops) : ops_(ops) {}
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  // 64-byte aligned memory, valid until the enclosing Scope ends. Throws std::bad_alloc when the
  // device is exhausted; Model::Step turns that into a Status.
  std::byte* Bytes(int64_t size_bytes);
  template <typename T>
  T* Array(int64_t count) {
    return reinterpret_cast<T*>(Bytes(count * static_cast<int64_t>(sizeof(T))));
  }

  // Gives back everything taken during its lifetime.
  class Scope {
   public:
    explicit Scope(Workspace* w) : w_(w), chunk_(w->chunk_), used_(w->used_) {}
    ~Scope() {
      w_->chunk_ = chunk_;
      w_->used_ = used_;
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Workspace* w_;
    size_t chunk_;
    int64_t used_;
  };

  // Bytes held from the device.
  int64_t capacity_bytes() const;

 private:
  struct Chunk {
    std::byte* memory;
    int64_t size;
  };

  Operators* ops_;
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;  // chunk in use; chunks before it are full
  int64_t used_ = 0;  // bytes taken of it
};

}  // namespace deepinfer
