// Every operator of the model as a benchmark over the shapes of one configuration.
// Thread rule: main thread. A suite owns its operands; backends are borrowed for a call.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "model/config.h"
#include "model/numerics.h"

namespace deepinfer {

enum class PeakKind : unsigned char { kFp32, kBf16 };

// One operator on one shape and number of rows.
struct KernelCase {
  std::string name;  // starts with the operator: "linear_fp8 wq_b fp8 4096x512 rows 4"
  double bytes = 0;  // that a call must read or write in memory
  double flops = 0;  // 2 for a multiply-add
  PeakKind peak = PeakKind::kFp32;
  std::function<void(Operators*)> run;
};

// The cases of one operator, with operands of their own.
class KernelSuite {
 public:
  virtual ~KernelSuite() = default;
  virtual std::vector<KernelCase> Cases() = 0;
};

struct KernelSuiteMaker {
  std::string name;  // "wq_b", "moe", "attention"
  std::function<std::unique_ptr<KernelSuite>()> make;
};

// What the cases are made for.
struct KernelShapes {
  ModelConfig config;
  Arithmetic arithmetic;
  std::vector<int64_t> rows;  // numbers of rows to measure, ascending
};

// One suite an operator and shape; operands are made when the suite is, so that one suite at a time
// is in memory.
std::vector<KernelSuiteMaker> LinearSuites(const KernelShapes& shapes);
std::vector<KernelSuiteMaker> AttentionSuites(const KernelShapes& shapes);
std::vector<KernelSuiteMaker> CacheSuites(const KernelShapes& shapes);
std::vector<KernelSuiteMaker> RowSuites(const KernelShapes& shapes);

}  // namespace deepinfer
