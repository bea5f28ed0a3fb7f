/* Marks a matrix product's kernel as serving the kernel that reads the product, for example a
 * GELU. If a library computes product and reader in one call, the executable does not launch the
 * product's kernel. */
#include "codegen/fuse/fuse.h"
#include "codegen/lower/nest.h"

#include <string.h>

/* A copy of kernel k that serves `server`, or an equal kernel of the module. */
static Kernel *
serving_kernel(Module *m, Sharing *sh, const Kernel *k, const Kernel *server)
{
	Kernel copy = *k;
	size_t letters = strlen(k->name);

	copy.serves = server;
	kernel_finish(&copy);
	Kernel *found = sharing_find(m, sh, &copy);
	if (found)
		return found;
	while (letters && k->name[letters - 1] >= '0' && k->name[letters - 1] <= '9')
		letters--;
	int number = m->kernels.n;
	const char *name;
	do
		name = arena_printf(m->arena, "%.*s%d", (int)letters, k->name, number++);
	while (strmap_get(m->kernel_names, name));
	return kernel_add(m, &copy, name);
}

/* Makes the launch n use kernel k and returns the launch. again: leaves n as it is, inserts a
 * second launch for k, and returns that one; nobody reads its result yet. */
static Node *
launch_of(Node *n, Kernel *k, bool again)
{
	if (!again) {
		((LaunchAttr *)n->attr)->kernel = k;
		return n;
	}
	Module *m = n->function->module;
	Value **operands = NEW_ARRAY(m->arena, Value *, n->n_operands);
	for (int i = 0; i < n->n_operands; i++)
		operands[i] = node_operand(n, i);
	return lower_insert_launch(n->next, k, n->n_operands, operands, 1,
	                           &node_result(n, 0)->type);
}

void
lower_serve_instead(Sharing *sh, Node *launch, const Kernel *from)
{
	Module *m = launch->function->module;

	for (int i = 0; i < launch->n_operands; i++) {
		Node *n = node_operand(launch, i)->node;
		Kernel *k = n && launched_kernel(n) ? ((LaunchAttr *)n->attr)->kernel : NULL;
		if (!k || k->serves != from)
			continue;
		((LaunchAttr *)n->attr)->kernel = serving_kernel(m, sh, k, launched_kernel(launch));
		lower_serve_instead(sh, n, k);
	}
}

/* The serving launch that makes the product's last operand; NULL: there is no such launch. */
static Node *
launch_before(const Node *product)
{
	Node *n = node_operand(product, product->n_operands - 1)->node;
	bool before = n && launched_kernel(n) &&
	              launched_kernel(n)->serves == launched_kernel(product);

	return before ? n : NULL;
}

void
lower_serve_reader(Module *m, Sharing *sh, const Epilogue *e, const Kernel *server)
{
	Node *reader = e->call->prev, *before = launch_before(e->product);
	const Kernel *made = before ? ((LaunchAttr *)before->attr)->kernel : NULL;
	Kernel *k = serving_kernel(m, sh, ((LaunchAttr *)e->product->attr)->kernel, server);
	Node *product = launch_of(e->product, k, e->again);

	if (before) {
		Node *n = launch_of(before, serving_kernel(m, sh, made, k), e->again);
		node_set_operand(product, product->n_operands - 1, node_result(n, 0));
	}
	Value *was = node_result(e->product, 0);
	if (reader->n_results > 1) {
		value_replace_uses(was, node_result(reader, 1));
		was = node_result(reader, 1);
	}
	for (int i = 0; i < reader->n_operands; i++)
		if (node_operand(reader, i) == was)
			node_set_operand(reader, i, node_result(product, 0));
}
