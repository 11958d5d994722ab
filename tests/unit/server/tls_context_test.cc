#include "server/tls_context.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include "support/self_signed.h"
#include "support/temp_dir.h"

namespace deepinfer {
namespace {

TEST(TlsContext, SpeaksNothingOlderThanTls12) {
  const TempDir dir;
  const SecurityPtr own = SelfSigned();
  TlsOptions options;
  options.certificate_file = dir.Write("cert.pem", own->certificate);
  options.key_file = dir.Write("key.pem", own->key);
  const Result<TlsContext> context = LoadTlsContext(options);
  ASSERT_TRUE(context.ok()) << context.status().ToString();
  EXPECT_EQ(SSL_CTX_get_min_proto_version((*context)->native_handle()), TLS1_2_VERSION);
}

}  // namespace
}  // namespace deepinfer
