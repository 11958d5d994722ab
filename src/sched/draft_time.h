// Predicted time of work of one kind by its size: of a draft pass over a number of sequences, of a
// step of a number of decode rows (dspark.md §6).
// Thread rule: one owner; Predict is const.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

namespace deepinfer {

class DraftTimeModel {
 public:
  // Microseconds: the median of the last passes of that size; between and beyond measured sizes a
  // straight line through the nearest ones and zero. 0 while nothing is known.
  double Predict(int64_t num_sequences) const;

  // The size itself where it, or sizes on both sides of it, were measured; else the nearest that
  // was. 0: none was.
  int64_t Nearest(int64_t num_sequences) const;

  // What took no time says nothing. Cold work shows no more than that of such work which goes on
  // none takes longer: it counts where nothing or a longer time is known.
  void Observe(int64_t num_sequences, double measured_us, bool is_cold = false);

 private:
  // So many samples of a size are kept: an odd number, few enough to follow the machine.
  static constexpr size_t kSamples = 9;
  // A size with fewer says nothing yet.
  static constexpr size_t kMinSamples = 5;

  struct Samples {
    std::array<double, kSamples> us{};
    size_t count = 0;  // ever taken

    double Median() const;
  };

  std::map<int64_t, Samples> by_size_;
  std::map<int64_t, double> median_us_;  // of sizes with enough samples
};

}  // namespace deepinfer
