// Plays a flow list on SimGrid (C++ S4U): one communication a flow, all at time zero, and prints when each ends.
// The route from the source to the target of a flow is its row of links. Zero latency.
// usage: simgrid_flows FLOWS TIMES [--cfg=...]; FLOWS: counts of flows and links; capacities; then, a flow, source,
// target, size, length of the row, links. Prints the seconds that the simulation took.
#include <simgrid/s4u.hpp>
#include <simgrid/version.h>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace sg = simgrid::s4u;

int main(int argc, char** argv) {
  sg::Engine engine(&argc, argv);
  FILE* in = argc > 2 ? fopen(argv[1], "r") : nullptr;
  int flows, links;
  if (!in || fscanf(in, "%d %d", &flows, &links) != 2) return 1;
#if SIMGRID_VERSION_MAJOR >= 4
  auto* root = engine.get_netzone_root();
  auto make_host = [&](const std::string& name) { return root->add_host(name, 1e9); };
  auto make_link = [&](const std::string& name, double rate) { return root->add_link(name, rate); };
#else
  auto* root = sg::create_full_zone("root");
  auto make_host = [&](const std::string& name) { return root->create_host(name, 1e9); };
  auto make_link = [&](const std::string& name, double rate) { return root->create_link(name, rate); };
#endif
  std::vector<sg::Link*> link(links);
  for (int i = 0; i < links; i++) {
    double capacity;
    if (fscanf(in, "%lf", &capacity) != 1) return 1;
    link[i] = make_link("l" + std::to_string(i), capacity);
    link[i]->set_latency(0.0);
    link[i]->seal();
  }
  std::vector<double> size(flows);
  std::vector<int> from(flows), to(flows);
  std::vector<std::vector<int>> row(flows);
  int hosts = 0;
  for (int i = 0; i < flows; i++) {
    int length;
    if (fscanf(in, "%d %d %lf %d", &from[i], &to[i], &size[i], &length) != 4) return 1;
    row[i].resize(length);
    for (int& number : row[i])
      if (fscanf(in, "%d", &number) != 1) return 1;
    hosts = std::max(hosts, std::max(from[i], to[i]) + 1);
  }
  fclose(in);
  std::vector<sg::Host*> host(hosts);
  for (int i = 0; i < hosts; i++) {
    host[i] = make_host("h" + std::to_string(i));
    host[i]->seal();
  }
  for (int i = 0; i < flows; i++) {
    std::vector<sg::LinkInRoute> path;
    for (int number : row[i]) path.emplace_back(link[number]);
#if SIMGRID_VERSION_MAJOR >= 4
    root->add_route(host[from[i]], host[to[i]], path, false);
#else
    root->add_route(host[from[i]]->get_netpoint(), host[to[i]]->get_netpoint(), nullptr, nullptr, path, false);
#endif
  }
  root->seal();
  std::vector<double> finish(flows);
  auto body = [&] {
    std::vector<sg::CommPtr> all;
    for (int i = 0; i < flows; i++)
      all.push_back(sg::Comm::sendto_async(host[from[i]], host[to[i]], static_cast<uint64_t>(size[i])));
    for (int i = 0; i < flows; i++) {
      all[i]->wait();
      finish[i] = all[i]->get_finish_time();
    }
  };
#if SIMGRID_VERSION_MAJOR >= 4
  host[0]->add_actor("launcher", body);
#else
  sg::Actor::create("launcher", host[0], body);
#endif
  auto began = std::chrono::steady_clock::now();
  engine.run();
  std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  FILE* out = fopen(argv[2], "w");
  if (!out) return 1;
  for (double time : finish) fprintf(out, "%.17g\n", time);
  fclose(out);
  printf("%.6f\n", took.count());
}
