#include "engine/actions/compile.h"

#include <string>
#include <utility>

#include "text/grammar_pool.h"

namespace deepinfer {

namespace {

Status CheckEnforced(const CompiledGrammar& grammar) {
  if (grammar.unenforced().empty()) return OkStatus();
  std::string parts;
  for (const std::string& part : grammar.unenforced()) parts += (parts.empty() ? "" : "; ") + part;
  return InvalidRequest("not everything can be enforced: " + parts);
}

// The server's trouble, not that of the grammar.
bool IsTransient(const Status& status) {
  return status.code() == StatusCode::kUnavailable || status.code() == StatusCode::kCancelled;
}

// False while it goes on waiting.
bool Settle(EngineState& state, Sequence& s, const std::function<void()>& wake, Status* status) {
  SequenceGrammar& g = s.grammar;
  const OutputGrammar& wanted = *s.request.grammar;
  if (!g.ticket->ready()) return false;
  const auto& result = g.ticket->result();
  if (result.ok()) {
    g.compiled = *result;
    if (wanted.strict) *status = CheckEnforced(*g.compiled);
  } else if (wanted.fallback && !g.uses_fallback && !IsTransient(result.status())) {
    g.uses_fallback = true;
    g.ticket = state.grammars->Compile(*wanted.fallback);
    g.ticket->WhenReady(wake);
    return false;
  } else {
    *status = result.status();
  }
  g.ticket = nullptr;
  return true;
}

}  // namespace

void BeginCompile(EngineState& state, Sequence& s) {
  s.state = SequenceState::kPending;
  state.compiling.push_back(s.id);
}

std::vector<CompiledSequence> TakeCompiled(EngineState& state, const std::function<void()>& wake) {
  std::vector<CompiledSequence> settled;
  std::erase_if(state.compiling, [&](int64_t id) {
    Sequence* s = state.Find(id);
    if (s == nullptr || IsTerminal(s->state)) return true;
    CompiledSequence done{s, OkStatus()};
    if (!Settle(state, *s, wake, &done.status)) return false;
    settled.push_back(std::move(done));
    return true;
  });
  return settled;
}

}  // namespace deepinfer
