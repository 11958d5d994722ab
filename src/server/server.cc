#include "server/server.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "server/overhead_log.h"
#include "server/server_handler.h"
#include "server/server_state.h"
#include "server/throughput_log.h"

namespace deepinfer {
namespace {

// How long finished answers may take to reach their clients after the engine has drained.
constexpr std::chrono::seconds kFlushTime{5};

Status CheckOptions(const ServerOptions& options, const ApiKeys& keys) {
  if (options.served_model_names.empty()) return InvalidRequest("no served model name");
  for (const auto& [alias, target] : options.model_aliases) {
    bool known = false;
    for (const std::string& name : options.served_model_names) known = known || name == target;
    if (!known) return InvalidRequest("model alias " + alias + " names an unserved model");
  }
  const bool loopback = IsLoopbackHost(options.http.host);
  if (!loopback && keys.empty() && !options.allow_unauthenticated) {
    return InvalidRequest("listening on " + options.http.host +
                          " needs API keys or --allow-unauthenticated");
  }
  for (const auto& key : keys.all()) {
    if (key->budget && (options.ledger_folder.empty() || !options.price_book)) {
      return InvalidRequest("API key " + key->name +
                            " has a budget, which needs --ledger and a --price-book");
    }
  }
#ifndef DEEPINFER_TEST_HOOKS
  if (options.enable_test_hooks) {
    return InvalidRequest("this build has no test hooks");
  }
#endif
  if (options.enable_test_hooks && !loopback) {
    return InvalidRequest("test hooks are refused on " + options.http.host);
  }
  return OkStatus();
}

}  // namespace

struct Server::Impl {
  Impl(ServerOptions options, ApiKeys keys, std::unique_ptr<KeyBudgets> budgets,
       const LoadProgress* progress, std::unique_ptr<LedgerWriter> ledger)
      : state(std::move(options), std::move(keys), std::move(budgets), progress, std::move(ledger)),
        handler(&state) {}

  ServerState state;
  ServerHandler handler;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<ThroughputLog> throughput_log;  // under stop_mutex
  std::unique_ptr<OverheadLog> overhead_log;      // under stop_mutex
  const int64_t began_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::steady_clock::now().time_since_epoch())
                               .count();
  std::mutex stop_mutex;
  bool stopped = false;  // under stop_mutex
};

std::unique_ptr<OverheadLog> Server::MakeOverheadLog(Impl& impl, Gateway* gateway) {
  ServerState& state = impl.state;
  OverheadScope scope;
  scope.build_commit = state.options.build_commit;
  scope.config_hash = state.options.config_hash;
  scope.model_name = state.options.served_model_names.front();
  scope.host_id = state.account.host_id();
  scope.role = WorkerRoleName(gateway->info().role);
  if (!state.options.run_id.empty()) scope.run_id = state.options.run_id;
  OverheadSource source;
  source.engines = [gateway] { return gateway->Statistics(); };
  source.probes_ns = [&state] { return state.probe.device_ns.load(std::memory_order_relaxed); };
  const CostBook* const costs = state.options.cost_book ? &*state.options.cost_book : nullptr;
  return std::make_unique<OverheadLog>(std::move(scope), impl.began_ns, std::move(source), costs,
                                       state.account.ledger());
}

Result<std::unique_ptr<Server>> Server::Start(ServerOptions options, const LoadProgress* progress) {
  Result<ApiKeys> loaded = ApiKeys::Load(options.api_key_file, options.api_keys);
  if (!loaded.ok()) {
    return loaded.status().Annotate(options.api_key_file.empty() ? "--api-key" : "--api-key-file");
  }
  ApiKeys keys = *std::move(loaded);
  DI_RETURN_IF_ERROR(CheckOptions(options, keys));
  DI_ASSIGN_OR_RETURN(std::unique_ptr<KeyBudgets> budgets,
                      KeyBudgets::Open(keys, options.ledger_folder));
  // Nothing reads the secrets any more.
  options.api_keys.clear();
  std::unique_ptr<LedgerWriter> ledger;
  if (!options.ledger_folder.empty()) {
    Result<std::unique_ptr<LedgerWriter>> opened =
        LedgerWriter::Open({.folder = options.ledger_folder});
    if (!opened.ok()) return opened.status().Annotate("--ledger");
    ledger = *std::move(opened);
  }
  std::unique_ptr<TraceExporter> traces;
  if (options.traces.enabled()) {
    Result<std::unique_ptr<TraceExporter>> opened = TraceExporter::Open(options.traces);
    if (!opened.ok()) {
      const bool is_file = !options.traces.file.empty();
      return opened.status().Annotate(is_file ? "--trace-file" : "--otlp-traces-endpoint");
    }
    traces = *std::move(opened);
  }
  auto impl = std::make_unique<Impl>(std::move(options), std::move(keys), std::move(budgets),
                                     progress, std::move(ledger));
  impl->state.traces = std::move(traces);
  if (!impl->state.options.listens) return std::unique_ptr<Server>(new Server(std::move(impl)));
  DI_ASSIGN_OR_RETURN(impl->http, HttpServer::Start(impl->state.options.http, &impl->handler));
  Log(LogLevel::kInfo, "server.listening",
      {{"scheme", impl->state.options.http.tls.enabled() ? "https" : "http"},
       {"host", impl->state.options.http.host},
       {"port", static_cast<int>(impl->http->port())}});
  return std::unique_ptr<Server>(new Server(std::move(impl)));
}

Server::Server(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Server::~Server() { Stop(); }

uint16_t Server::port() const { return impl_->http ? impl_->http->port() : 0; }

HttpHandler* Server::handler() { return &impl_->handler; }

void Server::Attach(ModelContext model) {
  ServerState* const state = &impl_->state;
  auto served = std::make_shared<ServedModel>();
  served->chat = state->options.chat;
  served->chat.vocab_size = model.gateway->info().vocab_size;
  served->chat.test_hooks = state->options.enable_test_hooks;
  served->chat.default_form = model.card.prompt_form;
  for (const std::string& name : state->options.served_model_names) {
    if (!served->chat.served_models.empty()) served->chat.served_models += ", ";
    served->chat.served_models += name;
  }
  served->chat.resolve_model =
      [state, form = model.card.prompt_form](std::string_view name) -> std::optional<PromptForm> {
    if (!state->Serves(name)) return std::nullopt;
    return form;
  };
  Gateway* const gateway = model.gateway;
  const bool owns_devices = model.owns_devices;
  if (state->options.exact_replay && !model.replay_folder.empty()) {
    auto folder = ReplayFolder::Open({.folder = model.replay_folder});
    if (folder.ok()) {
      state->replay.Use(*std::move(folder));
    } else {
      Log(LogLevel::kWarning, "replay.no_folder", {{"status", folder.status()}});
    }
  }
  served->context = std::move(model);
  state->SetModel(std::move(served));
  {
    const std::lock_guard lock(impl_->stop_mutex);
    const auto interval = state->options.throughput_log_interval;
    if (!impl_->stopped && interval.count() > 0) {
      impl_->throughput_log =
          std::make_unique<ThroughputLog>(interval, [gateway] { return gateway->Statistics(); });
    }
    if (!impl_->stopped && owns_devices && state->account.ledger() != nullptr) {
      impl_->overhead_log = MakeOverheadLog(*impl_, gateway);
    }
  }
  Log(LogLevel::kInfo, "server.ready",
      {{"port", static_cast<int>(port())}, {"model", state->options.served_model_names.front()}});
}

void Server::SetFailed(Status status) {
  Log(LogLevel::kError, "server.load_failed", {{"status", status}});
  impl_->state.failed.store(true, std::memory_order_release);
}

void Server::Drain(std::chrono::steady_clock::time_point deadline) {
  impl_->state.draining.store(true, std::memory_order_release);
  if (impl_->http) impl_->http->SetDraining();
  if (const auto model = impl_->state.model()) {
    const auto since_epoch =
        std::chrono::duration_cast<std::chrono::microseconds>(deadline.time_since_epoch());
    model->context.gateway->Drain(since_epoch.count());
  }
  // What the engine has finished is still to be accounted for and written out.
  const auto flush_deadline = std::max(deadline, std::chrono::steady_clock::now()) + kFlushTime;
  impl_->state.generations.WaitZeroUntil(flush_deadline);
  if (impl_->http) impl_->http->WaitIdle(flush_deadline);
}

void Server::Stop() {
  std::lock_guard lock(impl_->stop_mutex);
  if (std::exchange(impl_->stopped, true)) return;
  impl_->state.draining.store(true, std::memory_order_release);
  // Requests in preparation still submit; they find their client gone and cancel at once.
  if (impl_->http) impl_->http->Stop();
  impl_->state.prepare_pool.Stop();
  impl_->state.tokenize_pool.Stop();
  impl_->state.generations.WaitZero();
  impl_->state.stream_pool.Stop();
  impl_->throughput_log.reset();
  impl_->overhead_log.reset();
  if (impl_->state.traces) impl_->state.traces->Stop();
  // A disk that hangs must not keep the process.
  if (!impl_->state.account.Flush(std::chrono::steady_clock::now() + kFlushTime)) {
    Log(LogLevel::kError, "ledger.not_flushed",
        {{"dropped", impl_->state.account.num_dropped_lines()}});
  }
}

}  // namespace deepinfer
