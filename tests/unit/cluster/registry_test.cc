// The registry client against etcd itself and against the dev registry: the same words, the same
// effects. Then who uses it, while it goes away and comes back.

#include "cluster/registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <thread>

#include <cluster.pb.h>
#include "cluster/key_store.h"
#include "cluster/registration.h"
#include "cluster/registry_keys.h"
#include "cluster/registry_server.h"
#include "cluster/worker_directory.h"
#include "support/child_process.h"
#include "support/eventually.h"
#include "support/fake_clock.h"
#include "support/temp_dir.h"
#include "transfer/socket.h"

namespace deepinfer {
namespace {

constexpr std::chrono::seconds kPatience{30};

enum class Kind { kEtcd, kDev };

// A registry on an address of its own, which can be taken away.
class Backend {
 public:
  explicit Backend(Kind kind) : kind_(kind) {
    for (std::string* endpoint : {&endpoint_, &peer_}) {
      // Both ports are free now; nobody else binds what the system has just chosen.
      const auto socket = ListenTcp("127.0.0.1", 0);
      *endpoint = "127.0.0.1:" + std::to_string(PortOf(*socket));
    }
    Start();
  }
  void Start() {
    if (kind_ == Kind::kDev) {
      auto server = RegistryServer::Listen(endpoint_, &clock_);
      EXPECT_TRUE(server.ok()) << server.status().ToString();
      dev_ = *std::move(server);
      return;
    }
    etcd_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{
            "/usr/bin/etcd", "--data-dir", dir_.File("data"), "--listen-client-urls",
            "http://" + endpoint_, "--advertise-client-urls", "http://" + endpoint_,
            "--listen-peer-urls", "http://" + peer_, "--initial-advertise-peer-urls",
            "http://" + peer_, "--initial-cluster", "default=http://" + peer_, "--unsafe-no-fsync"},
        dir_.File("log"));
  }
  void Stop() {
    dev_.reset();
    etcd_.reset();
  }
  std::unique_ptr<Registry> Client(std::chrono::milliseconds limit = kPatience) const {
    return MakeRegistryClient(endpoint_, limit);
  }
  // A client of a registry that answers.
  std::unique_ptr<Registry> ReadyClient() const {
    EXPECT_TRUE(Eventually([&] { return Client(std::chrono::milliseconds(500))->List("/").ok(); }));
    return Client();
  }

 private:
  const Kind kind_;
  TempDir dir_;
  SteadyClock clock_;
  std::string endpoint_, peer_;
  std::unique_ptr<RegistryServer> dev_;
  std::unique_ptr<ChildProcess> etcd_;
};

class RegistryTest : public ::testing::TestWithParam<Kind> {
 protected:
  Backend backend_{GetParam()};
  std::unique_ptr<Registry> registry_ = backend_.ReadyClient();
};

std::vector<std::string> KeysOf(const RegistryList& list) {
  std::vector<std::string> keys;
  for (const RegistryEntry& entry : list.entries) keys.push_back(entry.key);
  return keys;
}

TEST_P(RegistryTest, KeepsKeysByPrefix) {
  for (const char* key : {"/a/2", "/a/1", "/a", "/b/1", "/a0"}) {
    EXPECT_TRUE(registry_->Put(key, std::string("of ") + key, 0).ok());
  }
  const auto list = registry_->List("/a/");
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(KeysOf(*list), (std::vector<std::string>{"/a/1", "/a/2"}));
  EXPECT_EQ(list->entries[0].value, "of /a/1");
  EXPECT_GE(list->revision, list->entries[0].mod_revision);
  EXPECT_TRUE(registry_->Delete("/a/1").ok());
  EXPECT_TRUE(registry_->Delete("/a/1").ok()) << "there is none any more";
  EXPECT_EQ(KeysOf(*registry_->List("/a/")), std::vector<std::string>{"/a/2"});
  EXPECT_FALSE((*registry_->Get("/a/1")).has_value());
  EXPECT_EQ((*registry_->Get("/a/2"))->value, "of /a/2");
}

TEST_P(RegistryTest, PutsOnlyOverTheRevisionThatWasSeen) {
  EXPECT_TRUE(*registry_->CompareAndPut("/x", 0, "first", 0));
  EXPECT_FALSE(*registry_->CompareAndPut("/x", 0, "second", 0)) << "it exists";
  const auto seen = *registry_->Get("/x");
  EXPECT_TRUE(*registry_->CompareAndPut("/x", seen->mod_revision, "third", 0));
  EXPECT_FALSE(*registry_->CompareAndPut("/x", seen->mod_revision, "fourth", 0)) << "it changed";
  EXPECT_EQ((*registry_->Get("/x"))->value, "third");
}

TEST_P(RegistryTest, EntriesGoWithTheirLease) {
  const auto lease = registry_->GrantLease(std::chrono::seconds(60));
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(registry_->Put("/l/1", "", *lease).ok());
  EXPECT_TRUE(registry_->Put("/l/2", "", 0).ok());
  EXPECT_EQ((*registry_->Get("/l/1"))->lease, *lease);
  EXPECT_EQ(*registry_->KeepAlive(*lease), std::chrono::seconds(60));
  EXPECT_TRUE(registry_->RevokeLease(*lease).ok());
  EXPECT_EQ(KeysOf(*registry_->List("/l/")), std::vector<std::string>{"/l/2"});
  EXPECT_EQ(registry_->KeepAlive(*lease).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(registry_->Put("/l/3", "", *lease).code(), StatusCode::kNotFound);
  EXPECT_EQ(registry_->RevokeLease(*lease).code(), StatusCode::kNotFound);
}

TEST_P(RegistryTest, AWatchSeesEveryChangeAfterItsRevisionOnce) {
  EXPECT_TRUE(registry_->Put("/w/1", "a", 0).ok());
  const int64_t revision = registry_->List("/w/")->revision;
  EXPECT_TRUE(registry_->Put("/w/1", "b", 0).ok());
  EXPECT_TRUE(registry_->Put("/other", "", 0).ok());
  const auto watch = registry_->Watch("/w/", revision);
  ASSERT_TRUE(watch.ok());
  EXPECT_TRUE(registry_->Delete("/w/1").ok());
  EXPECT_TRUE(registry_->Put("/w/2", "c", 0).ok());
  std::vector<RegistryEvent> seen;
  while (seen.size() < 3) {
    const auto events = (*watch)->Next();
    ASSERT_TRUE(events.has_value());
    seen.insert(seen.end(), events->begin(), events->end());
  }
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[0].entry.value, "b");
  EXPECT_TRUE(seen[1].deleted);
  EXPECT_EQ(seen[1].entry.key, "/w/1");
  EXPECT_EQ(seen[2].entry.key, "/w/2");
  std::thread stopper([&] { (*watch)->Stop(); });
  EXPECT_FALSE((*watch)->Next().has_value());
  stopper.join();
}

TEST_P(RegistryTest, IsUnavailableWhileItIsAway) {
  backend_.Stop();
  const auto client = backend_.Client(std::chrono::milliseconds(200));
  EXPECT_EQ(client->List("/").status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(client->Watch("/", 0).status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(client->KeepAlive(1).status().code(), StatusCode::kUnavailable);
}

std::string HelloAt(const std::string& endpoint) {
  wire::Hello hello;
  hello.set_endpoint(endpoint);
  return hello.SerializeAsString();
}

// What a directory told last.
class Told {
 public:
  WorkerDirectory::OnChange Callback() {
    return [this](const std::vector<std::string>& endpoints) {
      const std::lock_guard lock(mutex_);
      endpoints_ = endpoints;
    };
  }
  bool Becomes(const std::vector<std::string>& want) {
    return Eventually([&] {
      const std::lock_guard lock(mutex_);
      return endpoints_ == want;
    });
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> endpoints_;
};

TEST_P(RegistryTest, MayComeLaterThanItsClients) {
  backend_.Stop();
  Told told;
  const std::chrono::milliseconds limit(300);
  const auto directory = WorkerDirectory::FollowRegistry(backend_.Client(limit),
                                                         WorkerPrefix("c", "e"), told.Callback());
  const Registration registration(backend_.Client(limit), WorkerKey("c", "e", "n", 1),
                                  HelloAt("h:1"), {});
  std::this_thread::sleep_for(2 * limit);
  backend_.Start();
  EXPECT_TRUE(told.Becomes({"h:1"}));
}

TEST_P(RegistryTest, WorkersAreFoundLostAndFoundAgainAfterAnOutage) {
  const std::string prefix = WorkerPrefix("c", "cell");
  Told told;
  const auto directory =
      WorkerDirectory::FollowRegistry(backend_.Client(), prefix, told.Callback());
  RegistrationOptions options;
  options.lease = std::chrono::seconds(2);
  auto first =
      std::make_unique<Registration>(backend_.Client(std::chrono::milliseconds(500)),
                                     WorkerKey("c", "cell", "n1", 1), HelloAt("h1:1"), options);
  EXPECT_TRUE(told.Becomes({"h1:1"}));
  EXPECT_TRUE(registry_->Put(prefix + "noise", "\x01\x02", 0).ok());
  auto second =
      std::make_unique<Registration>(backend_.Client(std::chrono::milliseconds(500)),
                                     WorkerKey("c", "cell", "n2", 2), HelloAt("h2:1"), options);
  EXPECT_TRUE(told.Becomes({"h1:1", "h2:1"}));
  first.reset();
  EXPECT_TRUE(told.Becomes({"h2:1"})) << "it takes its entry back";
  backend_.Stop();
  backend_.Start();
  // The dev registry has forgotten everything, etcd's lease may have run out: either way the entry
  // is written again.
  EXPECT_TRUE(Eventually([&] {
    const auto client = backend_.Client(std::chrono::milliseconds(500));
    const auto entry = client->Get(WorkerKey("c", "cell", "n2", 2));
    return entry.ok() && entry->has_value();
  }));
  const auto third =
      std::make_unique<Registration>(backend_.Client(std::chrono::milliseconds(500)),
                                     WorkerKey("c", "cell", "n3", 3), HelloAt("h3:1"), options);
  EXPECT_TRUE(told.Becomes({"h2:1", "h3:1"}));
}

INSTANTIATE_TEST_SUITE_P(Kinds, RegistryTest, ::testing::Values(Kind::kEtcd, Kind::kDev),
                         [](const auto& kind) {
                           return kind.param == Kind::kEtcd ? "Etcd" : "Dev";
                         });

TEST(WorkerFile, IsReadAgainWhenItChanges) {
  const TempDir dir;
  Told told;
  const std::string path = dir.Write("workers", "# two\nh2:1\n  h1:1  # first\n\nh2:1\n");
  const auto directory = WorkerDirectory::FollowFile(path, told.Callback());
  EXPECT_TRUE(told.Becomes({"h1:1", "h2:1"}));
  dir.Write("workers", "h3:1\n");
  EXPECT_TRUE(told.Becomes({"h3:1"}));
  std::filesystem::remove(path);
  dir.Write("workers", "h3:1\nh4:1\n");
  EXPECT_TRUE(told.Becomes({"h3:1", "h4:1"}));
}

TEST(KeyStore, LeasesEndWithTheirTime) {
  FakeClock clock(0);
  KeyStore store(&clock);
  const auto lease = store.GrantLease(10, 0);
  ASSERT_TRUE(lease.has_value());
  EXPECT_FALSE(store.GrantLease(10, *lease).has_value()) << "taken";
  EXPECT_TRUE(KeyStore::Batch(&store).Put("k", "v", *lease));
  clock.Advance(9'999'999);
  EXPECT_EQ(store.KeepAlive(*lease), 10);
  clock.Advance(9'999'999);
  EXPECT_EQ(KeyStore::Batch(&store).Range({"k", ""}).size(), 1u);
  const int64_t before = KeyStore::Batch(&store).revision();
  clock.Advance(1);
  EXPECT_TRUE(KeyStore::Batch(&store).Range({"k", ""}).empty());
  EXPECT_EQ(store.KeepAlive(*lease), 0);
  const auto changes = store.Wait({"k", ""}, before + 1, std::chrono::milliseconds(0));
  ASSERT_TRUE(changes.has_value());
  ASSERT_EQ(changes->events.size(), 1u);
  EXPECT_TRUE(changes->events[0].deleted);
}

TEST(KeyStore, AWatchThatIsTooFarBehindIsTold) {
  FakeClock clock(0);
  KeyStore store(&clock);
  const int64_t begin = KeyStore::Batch(&store).revision();
  for (int i = 0; i < 10'001; ++i) EXPECT_TRUE(KeyStore::Batch(&store).Put("k", "", 0));
  EXPECT_FALSE(store.Wait({"k", ""}, begin + 1, std::chrono::milliseconds(0)).has_value());
  EXPECT_TRUE(store.Wait({"k", ""}, begin + 2, std::chrono::milliseconds(0)).has_value());
}

TEST(RegistryKeys, APrefixEndsWhereTheNextBegins) {
  EXPECT_EQ(PrefixEnd("/a/"), "/a0");
  EXPECT_EQ(PrefixEnd(std::string("a\xff\xff")), "b");
  EXPECT_EQ(PrefixEnd(std::string("\xff")), std::string(1, '\0'));
}

}  // namespace
}  // namespace deepinfer
