"""Setting up a model on the page: a gateway without one gets a provider, a key and a model, and answers."""

from __future__ import annotations

from pathlib import Path

from browser.test_axe import AXE, Checked
from browser.visitor import Visit
from support.forks import fork_gateway
from talaria.testing.gateway_process import GatewayProcess
from talaria.testing.model_server import ModelServer


async def test_a_model_is_set_up_on_the_page_and_answers(visit: Visit, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    config = home / "config.toml"
    acme = '[providers.acme]\nbase_url = "https://api.acme.example/v1"\napi_key = "sk-of-acme"\n'
    config.write_text(f'# mine\n[model]\nprovider = "openai"\nname = "gpt-5-mini"\n{acme}')
    config.chmod(0o600)
    settings = {"LOG__LEVEL": "error", "PROVIDERS__OPENAI__API_KEY_ENV": "NO_SUCH_KEY"}
    async with (
        ModelServer(record=False) as model,
        GatewayProcess(home, tmp_path / "log", settings, launch=fork_gateway) as gateway,
    ):
        await gateway.start()
        visitor = await visit(gateway)
        page = visitor.page
        await page.locator("#no-model").get_by_text("NO_SUCH_KEY").wait_for()
        await page.get_by_role("button", name="Set up a model").click()
        dialog = page.locator("#setup")
        provider = dialog.get_by_label("Provider, or the address of a server")
        await provider.fill("opnai")
        await dialog.get_by_role("button", name="Show models").click()
        await dialog.get_by_role("alert").get_by_text("Did you mean openai").wait_for()
        await provider.fill("openai")
        await dialog.get_by_role("button", name="Show models").click()
        await dialog.get_by_role("alert").get_by_text("needs a key").wait_for()
        await dialog.get_by_label("Key", exact=True).fill("sk-of-openai")
        await provider.fill("local")
        assert await dialog.get_by_label("Key", exact=True).input_value() == "", "a key is for one provider"
        await dialog.get_by_role("button", name="Show models").click()
        await dialog.get_by_role("alert").get_by_text("There is no provider named").wait_for()
        await provider.fill("https://elsewhere.acme.example/v1")  # which may not get the key of acme
        await dialog.get_by_role("button", name="Show models").click()
        await dialog.get_by_role("alert").get_by_text("with another address").wait_for()
        await provider.fill("http://127.0.0.1:9/v1")
        await dialog.get_by_role("button", name="Show models").click()
        await dialog.get_by_role("alert").get_by_text("Check the address").wait_for()
        assert "127.0.0.1" not in config.read_text(), "nothing is written before a model has answered"
        await provider.fill(model.base_url)
        await dialog.get_by_label("Key", exact=True).fill("sk-of-the-test-1234")
        await dialog.get_by_role("button", name="Show models").click()
        await dialog.get_by_label("Model", exact=True).wait_for()
        if AXE is not None:
            checked = Checked(visitor)
            await checked.look("setting up a model", colours=True)
            assert checked.faults == {}
        await dialog.get_by_role("button", name="Try it and use it").click()
        await dialog.get_by_text("answered in").wait_for()
        await dialog.get_by_role("button", name="Close").click()
        written = config.read_text()
        assert written.startswith("# mine\n") and "sk-of-the-test-1234" in written
        assert config.stat().st_mode & 0o077 == 0
        await page.locator("#no-model").wait_for(state="hidden")
        await visitor.say("hello")
        await visitor.sees("You said: hello")
        assert "sk-of-the-test-1234" not in await page.content()
