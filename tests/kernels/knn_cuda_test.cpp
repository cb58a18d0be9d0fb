// Tests of knn_query on CUDA: each search method gives the same bits as the CPU.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>

#include "cuda_device.h"

namespace cudarelu::testing {
namespace {

using Offsets = std::vector<std::int32_t>;
using Place = std::array<double, 3>;
using Cloud = std::function<Place(std::int64_t point)>;

struct NamedCloud {
  const char* name;
  Cloud cloud;
};

double unit(std::mt19937& random) { return std::uniform_real_distribution<double>()(random); }

std::vector<NamedCloud> clouds(std::mt19937& random) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const auto uniform = [&random](std::int64_t) -> Place {
    return {unit(random), unit(random), unit(random)};
  };
  return {
      {"uniform", uniform},
      {"clusters",
       [&random](std::int64_t i) -> Place {
         const double center = static_cast<double>(i * 7 % 20);
         return {center + 1e-4 * unit(random), 1e-4 * unit(random), center * center};
       }},
      {"some far away",
       [&random](std::int64_t i) -> Place {
         std::normal_distribution<double> normal;
         const double scale = i % 1000 == 0 ? 1e6 : 1;
         return {scale * normal(random), scale * normal(random), 0.01 * normal(random)};
       }},
      {"a plane, and points far above",
       [&random](std::int64_t i) -> Place {
         return {unit(random), unit(random), i % 100 == 0 ? 1e6 : 0};
       }},
      {"all equal", [](std::int64_t) -> Place { return {0.5, 0.25, 0.125}; }},
      {"a lattice",
       [](std::int64_t i) -> Place {
         return {static_cast<double>(i * 5 % 11), static_cast<double>(i * 3 % 7), 0};
       }},
      {"a diagonal",
       [&random](std::int64_t) -> Place {
         const double t = unit(random);
         return {t, 2 * t, -t};
       }},
      {"squares that vanish",
       [&random](std::int64_t) -> Place { return {1e-30 * unit(random), 0, 1e-30}; }},
      {"squares that overflow",
       [&random](std::int64_t) -> Place {
         return {6e38 * (unit(random) - 0.5), 1e19 * unit(random), 0};
       }},
      {"some not finite",
       [=](std::int64_t i) -> Place {
         Place place = uniform(i);
         constexpr std::array odd{std::nan(""), infinity, -infinity, 3e38, 1e19};
         if (i % 7 == 0) place[i % 3] = odd[i / 7 % odd.size()];
         return place;
       }},
      {"hardly any finite",
       [=](std::int64_t i) -> Place {
         return i % 5000 == 0 ? uniform(i) : Place{std::nan(""), 0, infinity};
       }},
  };
}

/// Points in batches, and queries.
struct KnnArguments {
  KnnArguments(DType dtype, std::int64_t points, const Offsets& ends, std::int64_t queries,
               const Offsets& query_ends, std::int64_t nsample, const Cloud& cloud)
      : xyz(dtype, {points, 3}, 1),
        offset(DType::int32, {std::ssize(ends)}, 1),
        new_xyz(dtype, {queries, 3}, 3),
        new_offset(DType::int32, {std::ssize(query_ends)}, 3),
        idx(DType::int32, {queries, nsample}, 1),
        distance(dtype, {queries, nsample}, 3),
        attributes{nsample} {
    fill(xyz, cloud);
    fill(new_xyz, cloud);
    std::memcpy(offset.data().data(), ends.data(), ends.size() * 4);
    std::memcpy(new_offset.data().data(), query_ends.data(), query_ends.size() * 4);
  }

  static void fill(GuardedTensor& tensor, const Cloud& cloud) {
    const TensorView view = tensor.view();
    (void)visit_dtype<floating_types>(view.dtype, [&]<class T>(TypeTag<T>) {
      for (std::int64_t i = 0; i < view.shape[0]; ++i) {
        const Place place = cloud(i);
        for (std::size_t axis = 0; axis < 3; ++axis) {
          static_cast<T*>(view.data)[3 * i + static_cast<std::int64_t>(axis)] =
              store<T>(static_cast<Compute<T>>(place[axis]));
        }
      }
      return Status();
    });
  }

  GuardedTensor xyz, offset, new_xyz, new_offset, idx, distance;
  std::vector<Attribute> attributes;
};

const Op& knn() { return *find_own("knn_query"); }

/// Runs the call on CUDA. With `own_queries`, new_xyz and new_offset are absent.
class DeviceKnn {
 public:
  explicit DeviceKnn(KnnArguments& host, bool own_queries = false)
      : xyz_(host.xyz),
        offset_(host.offset),
        new_xyz_(host.new_xyz),
        new_offset_(host.new_offset),
        idx_(host.idx),
        distance_(host.distance),
        attributes_(host.attributes),
        own_queries_(own_queries) {}

  Status run(CudaExecution& cuda) {
    std::array inputs{xyz_.view(), offset_.view(), new_xyz_.view(), new_offset_.view()};
    if (own_queries_) inputs[2].present = inputs[3].present = false;
    const std::array outputs{idx_.view(), distance_.view()};
    return cudarelu::run(knn(), inputs, outputs, attributes_, cuda);
  }
  void upload_points() {
    xyz_.upload();
    new_xyz_.upload();
  }
  void download(CudaExecution& cuda) {
    check(cudaStreamSynchronize(static_cast<cudaStream_t>(cuda.stream)));
    idx_.download();
    distance_.download();
  }

 private:
  DeviceTensor xyz_, offset_, new_xyz_, new_offset_, idx_, distance_;
  std::vector<Attribute> attributes_;
  bool own_queries_;
};

/// Compares the rows of `queries` with the results of the CPU.
void expect_rows(KnnArguments& actual, const Offsets& ends, const Offsets& query_ends,
                 const std::vector<std::int64_t>& queries) {
  const DType dtype = actual.xyz.view().dtype;
  const std::int64_t nsample = actual.idx.view().shape[1];
  Offsets chosen_ends;
  for (const std::int32_t end : query_ends) {
    chosen_ends.push_back(static_cast<std::int32_t>(
        std::ranges::count_if(queries, [&](std::int64_t query) { return query < end; })));
  }
  KnnArguments expected(dtype, actual.xyz.view().shape[0], ends, std::ssize(queries), chosen_ends,
                        nsample, [](std::int64_t) -> Place { return {}; });
  std::ranges::copy(actual.xyz.whole(), expected.xyz.whole().begin());
  const std::size_t row = 3 * size_of(dtype);
  for (std::size_t i = 0; i < queries.size(); ++i) {
    std::memcpy(expected.new_xyz.data().data() + i * row,
                actual.new_xyz.data().data() + static_cast<std::size_t>(queries[i]) * row, row);
  }
  SerialExecution cpu(0);
  const std::array inputs{expected.xyz.view(), expected.offset.view(), expected.new_xyz.view(),
                          expected.new_offset.view()};
  const std::array outputs{expected.idx.view(), expected.distance.view()};
  ASSERT_TRUE(run(knn(), inputs, outputs, expected.attributes, cpu).ok());
  const auto same = [&](GuardedTensor& a, GuardedTensor& b, std::size_t item) {
    const std::size_t bytes = static_cast<std::size_t>(nsample) * item;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const auto query = static_cast<std::size_t>(queries[i]);
      ASSERT_EQ(std::memcmp(a.data().data() + query * bytes, b.data().data() + i * bytes, bytes), 0)
          << "query " << query;
    }
  };
  same(actual.idx, expected.idx, 4);
  same(actual.distance, expected.distance, size_of(dtype));
  EXPECT_TRUE(actual.idx.intact());
  EXPECT_TRUE(actual.distance.intact());
}

std::vector<std::int64_t> some_of(std::int64_t count) {
  std::vector<std::int64_t> chosen;
  for (std::int64_t i = 0; i < count; i += std::max<std::int64_t>(1, count / 150)) {
    chosen.push_back(i);
  }
  if (count > 0 && chosen.back() != count - 1) chosen.push_back(count - 1);
  return chosen;
}

class KnnOnCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!has_cuda_device()) GTEST_SKIP() << "needs CUDA: no device on this machine";
  }

  void expect_cpu(DType dtype, std::int64_t points, const Offsets& ends, std::int64_t queries,
                  const Offsets& query_ends, std::int64_t nsample, const Cloud& cloud) {
    KnnArguments arguments(dtype, points, ends, queries, query_ends, nsample, cloud);
    CudaExecution cuda;
    DeviceKnn device(arguments);
    const Status status = device.run(cuda);
    ASSERT_TRUE(status.ok()) << status.message();
    device.download(cuda);
    expect_rows(arguments, ends, query_ends, some_of(queries));
  }

  /// The points as their own queries.
  void expect_cpu(DType dtype, std::int64_t points, const Offsets& ends, std::int64_t nsample,
                  const Cloud& cloud) {
    KnnArguments arguments(dtype, points, ends, points, ends, nsample, cloud);
    std::ranges::copy(arguments.xyz.data(), arguments.new_xyz.data().begin());
    CudaExecution cuda;
    DeviceKnn device(arguments, true);
    const Status status = device.run(cuda);
    ASSERT_TRUE(status.ok()) << status.message();
    device.download(cuda);
    expect_rows(arguments, ends, ends, some_of(points));
  }

  std::mt19937 random_{7};
};

/// Enough points for the tree search, and enough queries for one thread each.
constexpr std::int64_t many = 40'001;

TEST_F(KnnOnCuda, FindsItsOwnPointsNeighboursInAnyCloud) {
  for (const auto& [name, cloud] : clouds(random_)) {
    for (const std::int64_t nsample : {1, 8, 16, 27, 50, 100, 150}) {
      SCOPED_TRACE(std::string(name) + ", nsample " + std::to_string(nsample));
      expect_cpu(DType::float32, many, {many}, nsample, cloud);
      if (HasFailure()) return;
    }
  }
}

TEST_F(KnnOnCuda, FindsNeighboursOfSmallBatchesInAnyCloud) {
  const std::vector<Offsets> all{
      {5'000},                   // few queries: a tile each
      {0, 4'500, 4'503, 5'000},  // likewise
      {0, 4'500, 4'503, 5'000, 6'000, 7'000, 7'001, 10'000, 12'000, 15'000, 20'000},  // many
  };
  for (const auto& [name, cloud] : clouds(random_)) {
    for (const std::int64_t nsample : {1, 16, 17, 24, 25}) {
      for (const Offsets& ends : all) {
        SCOPED_TRACE(std::string(name) + ", nsample " + std::to_string(nsample) + ", points " +
                     std::to_string(ends.back()));
        expect_cpu(DType::float32, ends.back(), ends, nsample, cloud);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(KnnOnCuda, FindsOtherQueriesNeighboursInAnyCloud) {
  for (const auto& [name, cloud] : clouds(random_)) {
    for (const std::int64_t queries : {std::int64_t{300}, many}) {
      for (const std::int64_t nsample : {3, 16, 27, 64, 129}) {
        SCOPED_TRACE(std::string(name) + ", nsample " + std::to_string(nsample));
        const auto half = static_cast<std::int32_t>(queries / 2);
        expect_cpu(DType::float32, many, {9000, many}, queries, {half, half + 100}, nsample, cloud);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(KnnOnCuda, FindsNeighboursInEveryDtype) {
  const Cloud cloud = clouds(random_).front().cloud;
  for (const DType dtype : dtypes_of(knn())) {
    for (const std::int64_t nsample : {16, 32, 33, 1024}) {
      for (const std::int64_t points : {std::int64_t{700}, many}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " nsample " + std::to_string(nsample));
        expect_cpu(dtype, points, {static_cast<std::int32_t>(points)}, nsample, cloud);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_F(KnnOnCuda, KeepsToItsBatch) {
  const Cloud cloud = clouds(random_).front().cloud;
  Offsets tiny;
  for (std::int32_t end = 5; end <= 90'000; end += end % 3 * 7 + 5) tiny.push_back(end);
  const std::vector<Offsets> all{
      {0, 0, 1, 4, 4, 20'000, 20'003, many, many},          // very different sizes, some empty
      {30'000, 35'000},                                     // the last points are in no batch
      {5, 9, 40, 41, 100, 30'000, 30'001, 30'009, 90'000},  // several in a warp of the tree
      tiny,                                                 // several batches in one warp
  };
  for (const Offsets& ends : all) {
    const std::int64_t points = std::max<std::int64_t>(many, ends.back());
    for (const std::int64_t nsample : {16, 48, 130}) {
      SCOPED_TRACE(std::to_string(ends.size()) + " batches, nsample " + std::to_string(nsample));
      expect_cpu(DType::float32, points, ends, nsample, cloud);
      if (HasFailure()) return;
    }
  }
}

TEST_F(KnnOnCuda, TreeSearchCanBeCapturedAndReplayedOnNewPoints) {
  const Cloud cloud = clouds(random_).front().cloud;
  const Offsets ends{10'000, many};
  for (const std::int64_t nsample : {16, 40}) {
    KnnArguments arguments(DType::float32, many, ends, many, ends, nsample, cloud);
    CudaExecution cuda;
    auto* stream = static_cast<cudaStream_t>(cuda.stream);
    DeviceKnn device(arguments);
    ASSERT_TRUE(device.run(cuda).ok());  // loads the kernels, which is forbidden during capture
    check(cudaStreamSynchronize(stream));
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    const Status status = device.run(cuda);
    check(cudaStreamEndCapture(stream, &graph));
    ASSERT_TRUE(status.ok()) << status.message();
    check(cudaGraphInstantiate(&executable, graph, 0));

    KnnArguments::fill(arguments.xyz, cloud);
    KnnArguments::fill(arguments.new_xyz, cloud);
    device.upload_points();
    for (int replay = 0; replay < 2; ++replay) {
      check(cudaGraphLaunch(executable, stream));
      device.download(cuda);
      expect_rows(arguments, ends, ends, some_of(many));
    }
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
  }
}

TEST_F(KnnOnCuda, ReportsTheWorkspaceThatTheTreeNeeds) {
  const Cloud cloud = clouds(random_).front().cloud;
  KnnArguments arguments(DType::float32, many, {many}, many, {many}, 16, cloud);
  CudaExecution cuda;
  cuda.refuse = true;
  DeviceKnn device(arguments);
  const Status status = device.run(cuda);
  EXPECT_EQ(status.code(), Status::Code::out_of_memory);
  EXPECT_TRUE(status.message().starts_with("knn_query: cannot allocate ")) << status.message();
}

TEST_F(KnnOnCuda, StaysWithinItsTensorsForInvalidOffsets) {
  const Cloud cloud = clouds(random_).front().cloud;
  for (const std::int64_t points : {std::int64_t{2}, many}) {
    for (const std::int64_t nsample : {16, 40, 200}) {
      for (const Offsets& ends :
           {Offsets{-5, 1 << 30}, {40, 3}, {1 << 30, -(1 << 30)}, {20'000, 10'000, 30'000}}) {
        KnnArguments arguments(DType::float32, points, ends, points, ends, nsample, cloud);
        CudaExecution cuda;
        DeviceKnn device(arguments, true);
        ASSERT_TRUE(device.run(cuda).ok());
        device.download(cuda);
        EXPECT_TRUE(arguments.idx.intact());
        EXPECT_TRUE(arguments.distance.intact());
        const TensorView idx = arguments.idx.view();
        const auto* begin = static_cast<const std::int32_t*>(idx.data);
        EXPECT_TRUE(std::all_of(begin, begin + idx.size(),
                                [&](std::int32_t i) { return i >= -1 && i < points; }));
      }
    }
  }
}

}  // namespace
}  // namespace cudarelu::testing
