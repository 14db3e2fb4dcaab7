"""The one control plane that writes: a lock in Consul, held by a session with a time to live.

Every replica serves xDS whether it leads or not; leading is for writers alone. The session has no
health check, so that a blip of the local agent ends nothing; it is renewed at a third of its time,
and whoever could not renew it stops leading before anybody else can start. Consul's locks are
advisory: writers also write by compare-and-set.
"""

import asyncio

import structlog
from consul.aio import Consul

from control_plane.consul_calls import ConsulCallError, ConsulGoneError, call

logger = structlog.get_logger()

KEY = "wattmesh/leader"
TTL_S = 15  # Consul's least is 10; a session may live up to twice that
_MARGIN_S = 2.0  # stop leading so long before the session can end
_RETRY_S = 1.0
_LOCK_DELAY_S = 1  # Consul holds a lost lock back for so long


class Leadership:
    """Seeks the lock, and tells whether it is held. Used from one event loop."""

    def __init__(self, client: Consul, *, name: str, key: str = KEY, ttl_s: int = TTL_S) -> None:
        self._client = client
        self._name = name  # told to operators: who leads
        self._key = key
        self._ttl_s = ttl_s
        self._renewed_s = float("-inf")
        self._locked = False
        self._failing = False  # it was told already

    @property
    def leads(self) -> bool:
        """Whether this replica may write now. Ends by the clock alone when nothing is renewed."""
        now_s = asyncio.get_running_loop().time()
        return self._locked and now_s < self._renewed_s + self._ttl_s - _MARGIN_S

    async def seek(self) -> None:
        """Seek and hold the lock until cancelled; then let it go."""
        while True:
            session: str | None = None
            try:
                created = self._client.session.create(
                    name=self._name, ttl=self._ttl_s, lock_delay=_LOCK_DELAY_S, checks=[]
                )
                session = str(await call(created))
                await self._hold(session)
                self._failing = False
            except ConsulCallError as error:
                if not self._failing:
                    logger.warning("leadership cannot be sought, trying on", reason=str(error))
                self._failing = True
            finally:
                self._set(locked=False)
                if session is not None:
                    await self._let_go(session)
            await asyncio.sleep(_RETRY_S)

    async def _hold(self, session: str) -> None:
        """Renew the session and try for the lock, until it is gone or cannot be renewed."""
        clock = asyncio.get_running_loop().time
        asked_s = clock()
        self._renewed_s = asked_s
        while True:
            try:
                self._set(
                    locked=await call(self._client.kv.put(self._key, self._name, acquire=session))
                )
                await asyncio.sleep(self._ttl_s / 3)
                asked_s = clock()
                await call(self._client.session.renew(session))
                self._renewed_s = asked_s
            except ConsulGoneError:
                return  # never a renewal of the old: a new session
            except ConsulCallError:
                if clock() >= self._renewed_s + self._ttl_s:
                    return
                await asyncio.sleep(_RETRY_S)

    async def _let_go(self, session: str) -> None:
        """End the session, so that another can lead at once; its time to live ends it anyway."""
        ending = asyncio.ensure_future(call(self._client.session.destroy(session)))
        # Not asyncio.timeout: Python 3.11.2 does not end its wait in a task that is cancelled.
        await asyncio.wait([ending], timeout=_RETRY_S)
        ending.cancel()
        await asyncio.gather(ending, return_exceptions=True)

    def _set(self, *, locked: bool) -> None:
        if locked != self._locked:
            self._locked = locked
            logger.info("leading" if locked else "not leading", name=self._name)
