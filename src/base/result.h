// Result<T>: a value or a non-ok Status, and the two propagation macros.
// Thread rule: values, no shared state.
#pragma once

#include <tl/expected.hpp>
#include <utility>

#include "base/status.h"

namespace deepinfer {

template <typename T>
class [[nodiscard]] Result {
 public:
  // Implicit on purpose: functions return either a T or a Status.
  Result(T value) : value_(std::move(value)) {}
  Result(Status error) : value_(tl::unexpect, std::move(error)) {}

  bool ok() const { return value_.has_value(); }
  explicit operator bool() const { return ok(); }

  // Precondition: ok().
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }

  // Ok status when a value is held.
  Status status() const { return ok() ? Status() : value_.error(); }

 private:
  tl::expected<T, Status> value_;
};

}  // namespace deepinfer

#define DEEPINFER_CONCAT_INNER(a, b) a##b
#define DEEPINFER_CONCAT(a, b) DEEPINFER_CONCAT_INNER(a, b)

// Returns the status from the enclosing function unless it is ok.
#define DI_RETURN_IF_ERROR(expr)             \
  do {                                       \
    ::deepinfer::Status di_status_ = (expr); \
    if (!di_status_.ok()) [[unlikely]]       \
      return di_status_;                     \
  } while (false)

// DI_ASSIGN_OR_RETURN(auto x, MakeX()): declares or assigns, or returns the error.
#define DI_ASSIGN_OR_RETURN(lhs, expr) \
  DEEPINFER_ASSIGN_OR_RETURN_INNER(DEEPINFER_CONCAT(di_result_, __LINE__), lhs, expr)
#define DEEPINFER_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                     \
  if (!result.ok()) [[unlikely]]                            \
    return result.status();                                 \
  lhs = *std::move(result)
