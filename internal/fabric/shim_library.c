//go:build libfabric

#define _GNU_SOURCE
#include "shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

// A function of libfabric has a version of its own for each layout of the
// structs that it takes (libfabric.map.in of the source). fi_info and what hangs
// on it changed in 1.20 (max_ep_auth_key) and in 2.0.
#if FI_MAJOR_VERSION >= 2
#define INFO_VERSION "FABRIC_1.8"
#elif FI_MAJOR_VERSION == 1 && FI_MINOR_VERSION >= 20
#define INFO_VERSION "FABRIC_1.7"
#else
#define INFO_VERSION "FABRIC_1.3"
#endif

#define HEADERS FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION)

static void *symbol(moe_lib *lib, const char *name, const char *version, char *why, size_t n)
{
	// A library of the headers' own version has the headers' layouts as its
	// default; this also holds for versions that are not in the list above.
	void *p = lib->version == HEADERS ? dlsym(lib->handle, name) : dlvsym(lib->handle, name, version);
	if (p == NULL)
		snprintf(why, n, "%s is version %u.%u and has no %s of %s, which the headers of this build (%u.%u) need",
			 lib->path, FI_MAJOR(lib->version), FI_MINOR(lib->version), name, version,
			 FI_MAJOR_VERSION, FI_MINOR_VERSION);
	return p;
}

int moe_lib_open(moe_lib *lib, const char *path, char *why, size_t n)
{
	memset(lib, 0, sizeof(*lib));
	lib->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (lib->handle == NULL) {
		snprintf(why, n, "%s", dlerror());
		return ENOENT;
	}
	struct link_map *map = NULL;
	if (dlinfo(lib->handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL && map->l_name != NULL && map->l_name[0] != 0)
		snprintf(lib->path, sizeof(lib->path), "%s", map->l_name);
	else
		snprintf(lib->path, sizeof(lib->path), "%s", path);
	lib->get_version = dlsym(lib->handle, "fi_version");
	if (lib->get_version == NULL) {
		snprintf(why, n, "%s has no fi_version: it is not libfabric", lib->path);
		goto bad;
	}
	lib->version = lib->get_version();
	// The layouts of operations and of what they hang on only grew at their
	// ends; the oldest version that has all that is used here is 1.9.
	if (lib->version < FI_VERSION(1, 9)) {
		snprintf(why, n, "%s is version %u.%u, at least 1.9 is needed", lib->path,
			 FI_MAJOR(lib->version), FI_MINOR(lib->version));
		goto bad;
	}
	if ((lib->getinfo = symbol(lib, "fi_getinfo", INFO_VERSION, why, n)) == NULL ||
	    (lib->freeinfo = symbol(lib, "fi_freeinfo", INFO_VERSION, why, n)) == NULL ||
	    (lib->dupinfo = symbol(lib, "fi_dupinfo", INFO_VERSION, why, n)) == NULL ||
	    (lib->fabric = symbol(lib, "fi_fabric", "FABRIC_1.1", why, n)) == NULL ||
	    (lib->strerror = symbol(lib, "fi_strerror", "FABRIC_1.0", why, n)) == NULL)
		goto bad;
	return 0;
bad:
	dlclose(lib->handle);
	lib->handle = NULL;
	return ENOSYS;
}

// moe_hints asks for a reliable datagram endpoint. Progress is asked for as
// manual: the owner polls anyway, and a provider's own thread would take a core
// from it.
struct fi_info *moe_hints(moe_lib *lib, uint64_t caps, uint64_t mode, int mr_mode, const char *provider)
{
	struct fi_info *h = lib->dupinfo(NULL);
	if (h == NULL)
		return NULL;
	h->caps = caps;
	h->mode = mode;
	h->ep_attr->type = FI_EP_RDM;
	h->domain_attr->mr_mode = mr_mode;
	h->domain_attr->threading = FI_THREAD_DOMAIN;
	h->domain_attr->control_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	h->domain_attr->resource_mgmt = FI_RM_ENABLED;
	if (provider != NULL && provider[0] != 0) {
		h->fabric_attr->prov_name = strdup(provider);
		if (h->fabric_attr->prov_name == NULL) {
			lib->freeinfo(h);
			return NULL;
		}
	}
	return h;
}

int moe_getinfo(moe_lib *lib, struct fi_info *hints, struct fi_info **out)
{
	uint32_t version = lib->version < HEADERS ? lib->version : HEADERS;
	*out = NULL;
	return -lib->getinfo(version, NULL, NULL, 0, hints, out);
}

uint64_t moe_link_speed(const struct fi_info *info)
{
	return info->nic != NULL && info->nic->link_attr != NULL ? info->nic->link_attr->speed : 0;
}

// moe_pci writes the PCI address of the device, or nothing.
void moe_pci(const struct fi_info *info, char *buf, size_t n)
{
	if (info->nic == NULL || info->nic->bus_attr == NULL || info->nic->bus_attr->bus_type != FI_BUS_PCI)
		return;
	const struct fi_pci_attr *p = &info->nic->bus_attr->attr.pci;
	snprintf(buf, n, "%04x:%02x:%02x.%x", p->domain_id, p->bus_id, p->device_id, p->function_id);
}
