#include "economics/cost_book.h"

#include <gtest/gtest.h>

#include <string>

namespace deepinfer {
namespace {

// The book of the documents, with the kind and the rest that a test wants.
std::string Book(const std::string& kind, const std::string& more = "") {
  return R"({"id":"lab","currency":"USD","device_hour":{"h800":{"price":"2.00","kind":")" + kind +
         R"(","source":"list"}},"cpu_core_hour":"0.02",)"
         R"("storage":{"nvme":{"usd_per_gb_month":"0.00133","rated_tb_written":"14000",)"
         R"("device_price":"600"},"weights_gb":"510.3"},)"
         R"("network_per_gb":{"client":"0.05","handoff":"0.00"},)"
         R"("operations_hour":{"power_kw_per_device":"2.0","pue_included":true,"usd_per_kwh":"0.08",)"
         R"("staff":"0.5","software":"0","spares":"0"},)"
         R"("capex_per_device":"70000","opex_cash_per_device_hour":"2.00")" +
         more + "}";
}

TEST(CostBook, ThePartsOfALine) {
  const auto book = CostBook::Parse(Book("all_in"));
  ASSERT_TRUE(book.ok()) << book.status().ToString();
  EXPECT_EQ(book->id(), "lab");
  const Cost cost = book->Price(
      {.device_ns = 12'000'000, .disk_write_bytes = 14'000'000'000, .client_bytes = 2'000'000});
  // The worked example: 12 ms of a device at 2 dollars an hour.
  EXPECT_EQ(cost.compute, 6'666'666);
  // A millionth of the life of a disk of 600 dollars.
  EXPECT_EQ(cost.storage, 600'000'000);
  EXPECT_EQ(cost.network, 100'000'000);
  // Staff alone: power is in an all-in rate.
  EXPECT_EQ(cost.operations, 1'666'666);
  EXPECT_EQ(cost.Total(), PicoSum{6'666'666 + 600'000'000 + 100'000'000 + 1'666'666});
}

TEST(CostBook, PowerIsAddedToABareDevice) {
  const auto book = CostBook::Parse(Book("bare"));
  ASSERT_TRUE(book.ok()) << book.status().ToString();
  // 2 kW at 0.08 and the staff: 0.66 an hour.
  EXPECT_EQ(book->Price({.device_ns = 3'600'000'000'000}).operations, 660'000'000'000);
}

TEST(CostBook, ADayOfADeviceDoesNotOverflow) {
  const auto book = CostBook::Parse(Book("all_in"));
  ASSERT_TRUE(book.ok());
  EXPECT_EQ(book->Price({.device_ns = 86'400'000'000'000}).compute, 48'000'000'000'000);
}

TEST(CostBook, FaultsNameTheirField) {
  std::string two = Book("bare");
  two.replace(two.find("\"h800\""), 6, R"("a":{"price":"1","kind":"bare","source":""},"h800")");
  EXPECT_TRUE(CostBook::Parse(two, "a").ok());
  struct Row {
    std::string text;
    std::string device;
    std::string part;
  };
  const Row rows[] = {{"[]", "", "not a JSON object"},
                      {two, "", "several devices"},
                      {two, "b", "device_hour.b"},
                      {Book("rented"), "", "device_hour.h800.kind"},
                      {Book("bare", R"(,"power":1)"), "", "power is not a known field"},
                      {Book("bare", R"(,"id":7)"), "", "id must be a string"}};
  for (const Row& row : rows) {
    const auto book = CostBook::Parse(row.text, row.device);
    ASSERT_FALSE(book.ok()) << row.part;
    EXPECT_EQ(book.status().code(), StatusCode::kInvalidRequest);
    EXPECT_NE(book.status().message().find(row.part), std::string::npos) << book.status().message();
  }
  for (const char* price : {"-1", "1e3", "", ".5", "0.0000000000001", "1000001"}) {
    std::string text = Book("bare");
    text.replace(text.find("2.00"), 4, price);
    EXPECT_FALSE(CostBook::Parse(text).ok()) << price;
  }
}

}  // namespace
}  // namespace deepinfer
