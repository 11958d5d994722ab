// Runs with a work id, which outlive the gateway that submitted them: another one may take such a
// run over when its client asks again there (docs/cluster.md §4). Of every run the events so far
// are remembered, within a bound for all of them together.
// Thread rule: any thread. Owner: WorkerService.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "cluster/gateway_link.h"
#include "cluster/run_output.h"

namespace deepinfer {

struct KeptRunsOptions {
  int64_t orphan_us = 10'000'000;  // a run without a gateway ends after this time
  int64_t max_bytes = 64ll << 20;  // of all events; a run that has no room is not kept
};

class KeptRuns {
 public:
  explicit KeptRuns(const KeptRunsOptions& options = {}) : options_(options) {}

  enum class Part : unsigned char {
    kWhole,   // the run ends with the answer: it can be taken over
    kPrompt,  // another worker has the answer: it only goes on
    kAnswer,  // another worker has the prompt: it can be taken over from its first event on, for
              // before it nobody would tell a new gateway that the prompt failed
  };

  // The output of the run `name` of a request with a work id. It sends to the link for as long as
  // that stands. replaced: an orphan of the same work that nobody needs any more, or "".
  std::shared_ptr<RunOutput> Keep(const EngineRequest& request, const std::string& name, Part part,
                                  const std::shared_ptr<GatewayLink>& link, std::string* replaced);

  // The link is gone. Names of its runs that cannot be kept.
  std::vector<std::string> Orphan(const GatewayLink& link, int64_t now_us);

  // Lets the orphan of this work go on under another request id, from its first event on. False
  // when there is none.
  bool Adopt(const std::string& work_id, const std::string& request_id, uint32_t attempt,
             const std::shared_ptr<GatewayLink>& link);

  // The id under which the run of a request was submitted here; "" when the run that had this id
  // belongs to another request now.
  std::string SubmittedAs(const std::string& request_id) const;

  // The run is being cancelled: nobody takes it over any more.
  void Forget(const std::string& name);

  // Names of orphans that waited for too long, each once.
  std::vector<std::string> Expire(int64_t now_us);
  // Names of all orphans.
  std::vector<std::string> ExpireAll();

  int32_t num_orphans() const;  // that can be taken over
  int64_t num_bytes() const;

 private:
  class Kept;
  using KeptPtr = std::shared_ptr<Kept>;

  bool IsAdoptable(const Kept& kept) const;
  void DropJournal(Kept* kept);
  void DropAlias(const Kept& kept);
  void Remove(const Kept& kept);

  const KeptRunsOptions options_;
  mutable std::mutex mutex_;  // of everything here and in every Kept
  std::unordered_map<std::string, KeptPtr> by_name_;
  std::unordered_map<std::string, std::string> name_of_work_;
  std::unordered_map<std::string, std::string> submitted_as_;  // of adopted ones, by request id
  int64_t num_bytes_ = 0;
};

}  // namespace deepinfer
