#include "cluster/handshake.h"

#include <unistd.h>

#include <algorithm>

#include <cluster.pb.h>
#include "cluster/incarnation.h"

namespace deepinfer {

wire::Message MakeHello(uint64_t incarnation, const std::string& role, const WorkerInfo& info) {
  wire::Message message;
  message.set_sender(incarnation);
  wire::Hello* hello = message.mutable_hello();
  hello->set_version_min(kOldestProtocolVersion);
  hello->set_version_max(kProtocolVersion);
  hello->set_role(role);
  hello->set_model_name(info.model_name);
  hello->set_numerics_id(info.numerics_id);
  hello->set_vocab_size(info.vocab_size);
  hello->set_max_model_len(info.max_model_len);
  hello->set_eos_token_id(info.eos_token_id);
  hello->set_kv_slot_bytes(info.kv_slot_bytes);
  hello->set_kv_block_bytes(info.kv_block_bytes);
  hello->mutable_kv_section_bytes()->Assign(info.kv_section_bytes.begin(),
                                            info.kv_section_bytes.end());
  hello->set_cut_row_bytes(info.cut_row_bytes);
  hello->set_kv_root(info.kv_root);
  hello->set_encoder_only(info.encoder_only);
  hello->set_full_decoder_tail(info.full_decoder_tail);
  hello->set_hands_over_by_store(info.hands_over_by_store);
  hello->set_weights_hash(info.weights_hash);
  if (info.kv_namespace) {
    hello->set_kv_namespace(info.kv_namespace->data(), info.kv_namespace->size());
  }
  hello->set_answers_probes(info.answers_probes);
  hello->set_pid(getpid());
  hello->set_host_id(HostId());
  hello->set_revision(info.revision);
  return message;
}

WorkerInfo InfoOfHello(const wire::Message& message) {
  const wire::Hello& hello = message.hello();
  WorkerInfo info;
  info.model_name = hello.model_name();
  info.numerics_id = hello.numerics_id();
  info.vocab_size = hello.vocab_size();
  info.max_model_len = hello.max_model_len();
  info.eos_token_id = hello.eos_token_id();
  info.role = ParseWorkerRole(hello.role()).value_or(WorkerRole::kAll);
  info.kv_slot_bytes = hello.kv_slot_bytes();
  info.kv_block_bytes = hello.kv_block_bytes();
  info.kv_section_bytes.assign(hello.kv_section_bytes().begin(), hello.kv_section_bytes().end());
  info.cut_row_bytes = hello.cut_row_bytes();
  info.kv_root = hello.kv_root();
  info.encoder_only = hello.encoder_only();
  info.full_decoder_tail = hello.full_decoder_tail();
  info.hands_over_by_store = hello.hands_over_by_store();
  info.weights_hash = hello.weights_hash();
  const std::string& name = hello.kv_namespace();
  if (name.size() == sizeof(Sha256Digest)) {
    std::copy(name.begin(), name.end(), info.kv_namespace.emplace().begin());
  }
  info.answers_probes = hello.answers_probes();
  info.incarnation = message.sender();
  info.pid = hello.pid();
  info.revision = hello.revision();
  return info;
}

std::string WhyRefused(const wire::Hello& hello, const WorkerInfo& own) {
  if (hello.version_min() > kProtocolVersion || hello.version_max() < kOldestProtocolVersion) {
    return "protocol versions " + std::to_string(hello.version_min()) + " to " +
           std::to_string(hello.version_max()) + " do not meet " +
           std::to_string(kOldestProtocolVersion) + " to " + std::to_string(kProtocolVersion);
  }
  if (hello.role() == kOperatorRole ||
      (hello.role() == kGatewayRole && hello.numerics_id().empty())) {
    return {};
  }
  const auto differs = [](const char* what, const auto& theirs, const auto& ours) {
    return std::string(what) + " differ: " + theirs + " and " + ours;
  };
  if (hello.numerics_id() != own.numerics_id) {
    return differs("model or numerics", hello.numerics_id(), own.numerics_id);
  }
  if (hello.vocab_size() != own.vocab_size || hello.eos_token_id() != own.eos_token_id ||
      hello.max_model_len() != own.max_model_len) {
    return differs("vocabulary or context", std::to_string(hello.max_model_len()),
                   std::to_string(own.max_model_len));
  }
  if (hello.revision() != own.revision && ParseWorkerRole(hello.role())) {
    return differs("revisions", hello.revision(), own.revision);
  }
  if (hello.full_decoder_tail() != own.full_decoder_tail && ParseWorkerRole(hello.role())) {
    const auto tail = [](bool full) { return full ? "full" : "compact"; };
    return differs("decoder tails", tail(hello.full_decoder_tail()), tail(own.full_decoder_tail));
  }
  const auto& sections = hello.kv_section_bytes();
  if (hello.kv_slot_bytes() != own.kv_slot_bytes || hello.kv_block_bytes() != own.kv_block_bytes ||
      !std::equal(sections.begin(), sections.end(), own.kv_section_bytes.begin(),
                  own.kv_section_bytes.end()) ||
      hello.cut_row_bytes() != own.cut_row_bytes) {
    return differs("cache layouts", std::to_string(hello.kv_block_bytes()),
                   std::to_string(own.kv_block_bytes));
  }
  return {};
}

}  // namespace deepinfer
