#include "tests/support/sim_device/sim_device.h"

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace levin::testing {
namespace {

using sim::device;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

class SimStreams : public ::testing::Test {
 protected:
  c10::Stream home() const { return backend_.getStream(device(0)); }

  at::Tensor made_on_side() const {
    const c10::StreamGuard on_side(side_);
    return at::ones({100}, device(0));
  }
  static void order(const c10::Stream& first, const c10::Stream& second) {
    c10::Event done(at::kPrivateUse1);
    done.record(first);
    done.block(second);
  }

  const c10::impl::VirtualGuardImpl backend_{at::kPrivateUse1};
  const c10::Stream side_ = backend_.getStreamFromGlobalPool(device(0));
};
using SimCopies = SimStreams;
using SimWaits = SimStreams;

TEST_F(SimStreams, ReadingWhatAnotherStreamMayStillWriteIsARace) {
  const at::Tensor made = made_on_side();
  (void)made.add(1);
  EXPECT_THAT(sim::report().faults,
              ElementsAre(Key(AllOf(HasSubstr("race: aten::add"), HasSubstr("reads"), HasSubstr("may still write")))));
}

TEST_F(SimStreams, AnEventOrdersThem) {
  const at::Tensor made = made_on_side();
  order(side_, home());
  (void)made.add(1);
  EXPECT_THAT(sim::report().faults, IsEmpty());
  EXPECT_EQ(sim::report().total_waits(), 0);
}

TEST_F(SimStreams, EventsKnowHowMuchWorkIsBetweenThem) {
  at::Tensor made = at::ones({100}, device(0));
  c10::Event first(at::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  c10::Event last(at::kPrivateUse1, c10::EventFlag::BACKEND_DEFAULT);
  first.record(home());
  for (int i = 0; i < 3; ++i) made.add_(1);
  last.record(home());
  last.synchronize();
  EXPECT_DOUBLE_EQ(first.elapsedTime(last), 0.003);
}

TEST_F(SimStreams, SoDoesAWaitOfTheHost) {
  const at::Tensor made = made_on_side();
  side_.synchronize();
  (void)made.add(1);
  EXPECT_THAT(sim::report().faults, IsEmpty());
}

TEST_F(SimStreams, WritingWhatAnotherStreamMayStillReadIsARace) {
  at::Tensor tensor = at::ones({100}, device(0));
  order(home(), side_);
  {
    const c10::StreamGuard on_side(side_);
    (void)tensor.add(1);
  }
  (void)tensor.add(1);  // Two readers are none.
  EXPECT_THAT(sim::report().faults, IsEmpty());
  tensor.zero_();
  EXPECT_THAT(sim::report().faults, ElementsAre(Key(AllOf(HasSubstr("writes"), HasSubstr("may still read")))));
  order(side_, home());
}

TEST_F(SimStreams, PartsOfOneBlockAreIndependent) {
  at::Tensor whole = at::ones({100}, device(0));
  order(home(), side_);
  {
    const c10::StreamGuard on_side(side_);
    whole.narrow(0, 50, 50).zero_();
  }
  whole.narrow(0, 0, 50).zero_();
  EXPECT_THAT(sim::report().faults, IsEmpty());
  whole.narrow(0, 49, 2).zero_();
  EXPECT_EQ(sim::report().faults.size(), 1);
  order(side_, home());
}

TEST_F(SimStreams, FreedMemoryThatAnotherStreamStillUsesNeedsRecordStream) {
  const auto use_on_side = [&](bool records) {
    at::Tensor tensor = at::ones({100}, device(0));
    order(home(), side_);
    const c10::StreamGuard on_side(side_);
    (void)tensor.add(1);
    if (records) tensor.record_stream(side_);
  };
  use_on_side(/*records=*/true);
  (void)at::empty({100}, device(0));
  EXPECT_THAT(sim::report().faults, IsEmpty());
  use_on_side(/*records=*/false);
  (void)at::empty({50}, device(0));
  EXPECT_THAT(sim::report().faults, ElementsAre(Key(HasSubstr("missing record_stream"))));
}

TEST_F(SimStreams, MemoryIsReusedWithoutAFaultOnceItsStreamHasWaited) {
  {
    at::Tensor tensor = at::ones({100}, device(0));
    order(home(), side_);
    const c10::StreamGuard on_side(side_);
    (void)tensor.add(1);
  }
  order(side_, home());
  (void)at::empty({100}, device(0));
  EXPECT_THAT(sim::report().faults, IsEmpty());
}

TEST_F(SimStreams, AQueryIsNotYetDoneForTheFirstWhoAsks) {
  c10::Event done(at::kPrivateUse1);
  const at::Tensor tensor = at::ones({4}, device(0));
  done.record(home());
  EXPECT_FALSE(done.query());
  EXPECT_TRUE(done.query());
  EXPECT_EQ(sim::report().total_waits(), 0);
}

TEST_F(SimStreams, AnotherDevicesCopyOrdersBothCurrentStreams) {
  const at::Tensor there = at::ones({4}, device(1));
  const at::Tensor here = there.to(device(0), /*non_blocking=*/true);
  (void)here.add(1);
  EXPECT_THAT(sim::report().faults, IsEmpty());
  EXPECT_EQ(sim::report().total_waits(), 0);
}

TEST_F(SimCopies, ToTheHostArriveWhenItHasWaited) {
  const at::Tensor host = at::full({4}, 7.0F, device(0)).to(at::kCPU, /*non_blocking=*/true);
  EXPECT_TRUE(host.is_pinned());
  EXPECT_NE(host[0].item<float>(), 7);
  EXPECT_EQ(sim::report().total_waits(), 0);
  home().synchronize();
  EXPECT_EQ(host[0].item<float>(), 7);
}

TEST_F(SimCopies, ToTheHostArriveWithAnEventOfTheirStreamOnly) {
  const at::Tensor host = at::full({4}, 7.0F, device(0)).to(at::kCPU, /*non_blocking=*/true);
  side_.synchronize();
  EXPECT_NE(host[0].item<float>(), 7);
  c10::Event copied(at::kPrivateUse1);
  copied.record(home());
  copied.synchronize();
  EXPECT_EQ(host[0].item<float>(), 7);
}

TEST_F(SimCopies, FromTheHostReadItsMemoryLate) {
  at::Tensor host = at::full({4}, 1.0F).pin_memory();
  const at::Tensor copy = host.to(device(0), /*non_blocking=*/true);
  host.fill_(2);  // too early: nobody has waited
  EXPECT_EQ(copy.cpu()[0].item<float>(), 2);
}

TEST_F(SimCopies, FromTheHostReadItsMemoryOnceTheHostHasWaited) {
  at::Tensor host = at::full({4}, 1.0F).pin_memory();
  const at::Tensor copy = host.to(device(0), /*non_blocking=*/true);
  home().synchronize();
  host.fill_(2);
  EXPECT_EQ(copy.cpu()[0].item<float>(), 1);
}

TEST_F(SimCopies, FillPartsOfABlockInOrder) {
  at::Tensor whole = at::zeros({8}, device(0));
  const at::Tensor ones = at::ones({4}).pin_memory();
  const at::Tensor twos = at::full({4}, 2.0F).pin_memory();
  whole.narrow(0, 0, 4).copy_(ones, /*non_blocking=*/true);
  whole.narrow(0, 2, 4).copy_(twos, /*non_blocking=*/true);
  EXPECT_TRUE(whole.cpu().equal(at::tensor({1.0F, 1.0F, 2.0F, 2.0F, 2.0F, 2.0F, 0.0F, 0.0F})));
}

TEST_F(SimCopies, KeepTheHostsMemoryUntilTheyAreMade) {
  at::Tensor copy;
  {
    const at::Tensor host = at::full({1000}, 3.0F).pin_memory();
    copy = host.to(device(0), /*non_blocking=*/true);
  }
  const at::Tensor other = at::full({1000}, 4.0F).pin_memory();
  EXPECT_EQ(copy.cpu()[999].item<float>(), 3);
}

TEST_F(SimCopies, ToTheHostAndBackAreInTheStreamsOrder) {
  at::Tensor host = at::zeros({4}).pin_memory();
  host.copy_(at::full({4}, 7.0F, device(0)), /*non_blocking=*/true);
  const at::Tensor back = host.to(device(0), /*non_blocking=*/true);
  host.copy_(at::full({4}, 8.0F, device(0)), /*non_blocking=*/true);
  EXPECT_EQ(back.add(0).sum().cpu().item<float>(), 28);
  EXPECT_EQ(host[0].item<float>(), 8);
}

TEST_F(SimCopies, CanBeAsEarlyAsTheyMay) {
  const sim::EarlyCopies early;
  at::Tensor host = at::full({4}, 1.0F).pin_memory();
  const at::Tensor copy = host.to(device(0), /*non_blocking=*/true);
  host.fill_(2);
  EXPECT_EQ(copy.to(at::kCPU, /*non_blocking=*/true)[0].item<float>(), 1);
}

TEST_F(SimWaits, AreCountedByKind) {
  const at::Tensor tensor = at::ones({4}, device(0));
  (void)tensor.sum().item<float>();
  (void)tensor.cpu();
  (void)at::ones({4}).to(device(0));
  (void)at::ones({4}).to(device(0), /*non_blocking=*/true);
  (void)tensor.nonzero();
  (void)tensor.masked_select(tensor > 0);
  (void)tensor.index({tensor > 0});
  home().synchronize();
  backend_.synchronizeDevice(0);
  c10::Event event(at::kPrivateUse1);
  event.record(home());
  event.synchronize();
  using sim::Wait;
  const std::map<Wait, int64_t> expected = {{Wait::kItem, 1},       {Wait::kCopyToHost, 1},    {Wait::kCopyFromHost, 1},
                                            {Wait::kStagedCopy, 1}, {Wait::kShapeFromData, 3}, {Wait::kStream, 1},
                                            {Wait::kDevice, 1},     {Wait::kEvent, 1}};
  EXPECT_EQ(sim::report().waits, expected) << sim::report().to_string();
}

TEST_F(SimWaits, AreNoneOfOrdinaryWork) {
  const at::Tensor weight = at::ones({4, 4}, device(0)).set_requires_grad(true);
  const at::Tensor input = at::rand({8, 4}, device(0));
  const at::Tensor pinned = at::rand({8, 4}).pin_memory();
  for (int i = 0; i < 2; ++i)
    at::dropout(at::mm(input + pinned.to(device(0), /*non_blocking=*/true), weight), 0.5, true)
        .square()
        .mean()
        .backward();
  EXPECT_EQ(sim::report().total_waits(), 0) << sim::report().to_string();
  EXPECT_THAT(sim::report().faults, IsEmpty());
}

TEST_F(SimWaits, AreShownToAnObserver) {
  int64_t seen = 0;
  sim::Ledger::instance().observe_waits([&](sim::Wait kind) { seen += kind == sim::Wait::kItem ? 1 : 0; });
  (void)at::ones({}, device(1)).item<float>();
  sim::Ledger::instance().observe_waits({});
  EXPECT_EQ(seen, 1);
}

}  // namespace
}  // namespace levin::testing
