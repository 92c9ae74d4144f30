/* SPDX-License-Identifier: Apache-2.0 */
#include "base/vec.h"

#include <errno.h>
#include <stdint.h>

int vec_reserve(void **data, size_t *cap, size_t count_min, size_t item_size)
{
	if (count_min <= *cap)
		return 0;
	size_t n = *cap ? *cap : 8;
	while (n < count_min) {
		if (n > SIZE_MAX / 2)
			return -ENOMEM;
		n *= 2;
	}
	void *grown = reallocarray(*data, n, item_size);
	if (!grown)
		return -ENOMEM;
	*data = grown;
	*cap = n;
	return 0;
}
