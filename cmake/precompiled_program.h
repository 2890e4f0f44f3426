// What programs and tests include beside what the library's sources do.
#pragma once

#include "precompiled.h"

#include <torch/torch.h>

#if __has_include(<gmock/gmock.h>)
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#endif
